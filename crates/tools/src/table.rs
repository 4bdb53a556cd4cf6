//! Tables in kubectl's style: aligned columns without borders. Sanitizes the cells, which may be untrusted.

use comfy_table::{ContentArrangement, Table, presets};

use super::terminal::sanitized;

/// Rows below a heading.
pub fn columns<const N: usize>(heading: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> String {
    let rows: Vec<_> = rows.into_iter().collect();
    laid_out(std::iter::once(heading.map(str::to_owned)).chain(rows))
}

/// Names and values; an empty name continues the value above.
pub fn facts(rows: impl IntoIterator<Item = (&'static str, String)>) -> String {
    laid_out(rows.into_iter().map(|(name, value)| [name.to_owned(), value]))
}

/// Rows without a heading.
pub fn rows<const N: usize>(rows: impl IntoIterator<Item = [String; N]>) -> String {
    laid_out(rows)
}

fn laid_out<const N: usize>(rows: impl IntoIterator<Item = [String; N]>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    for row in rows {
        table.add_row(row.map(|cell| sanitized(&cell)));
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_harmless() {
        let rows = [["alice", "now"], ["a\u{1b}[31mlice and bob", "\u{202e}later\n"]];
        let table = columns(["NAME", "WHEN"], rows.map(|row| row.map(str::to_owned)));
        assert_eq!(
            table,
            "NAME                WHEN\n\
             alice               now\n\
             a\u{fffd}[31mlice and bob  \u{fffd}later\u{fffd}\n"
        );
    }
}

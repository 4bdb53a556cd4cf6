//! HTTP/1.1, one request at a time.

use super::{Ask, Heard, Wire};

const END: &[u8] = b"\r\n\r\n";

pub(crate) struct Http1 {
    request: Vec<u8>,
    /// A header that has not come in full.
    head: Vec<u8>,
    /// How much of a body is to come; without bound if it is a stream.
    body: Option<usize>,
}

impl Http1 {
    pub(crate) fn new(ask: &Ask) -> Self {
        let mut request = format!("GET {} HTTP/1.1\r\nhost: localhost\r\n", ask.path);
        for (name, value) in &ask.headers {
            request.extend([name, ": ", value, "\r\n"]);
        }
        request.push_str("\r\n");
        Self { request: request.into_bytes(), head: Vec::new(), body: None }
    }

    /// Takes a header; gives the length of the body.
    fn body_of(&self) -> usize {
        let head = std::str::from_utf8(&self.head).expect("a header is text");
        assert!(head.starts_with("HTTP/1.1 200 "), "refused: {head}");
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().unwrap())
        });
        length.unwrap_or(usize::MAX)
    }
}

impl Wire for Http1 {
    fn greet(&mut self, _: &mut Vec<u8>) {}

    fn ask(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.request);
    }

    fn hear(&mut self, mut input: &[u8], _: &mut Vec<u8>) -> Heard {
        let mut heard = Heard::default();
        while !input.is_empty() {
            let Some(left) = &mut self.body else {
                let known = self.head.len();
                self.head.extend_from_slice(input);
                // The end may have begun in what came before.
                let from = known.saturating_sub(END.len() - 1);
                let end = self.head[from..].windows(END.len()).position(|bytes| bytes == END);
                let Some(end) = end.map(|end| from + end + END.len()) else { break };
                input = &input[end - known..];
                self.head.truncate(end);
                self.body = Some(self.body_of());
                self.head.clear();
                heard.heads += 1;
                continue;
            };
            let taken = input.len().min(*left);
            *left -= taken;
            input = &input[taken..];
            if *left == 0 {
                self.body = None;
                heard.answers += 1;
            }
        }
        heard
    }
}

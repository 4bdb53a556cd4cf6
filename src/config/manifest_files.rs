//! The files of a folder of static manifests, and the YAML documents in a file.
//!
//! Follows `k8s.io/apiserver/pkg/admission/plugin/manifest/loader.go` and
//! `k8s.io/apimachinery/pkg/util/yaml/decoder.go`, `YAMLReader`.

use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// The manifests directly in a folder, by their names in byte order. Folders in it are left out, but not symbolic links:
/// those of a mounted `ConfigMap` name files.
pub(super) fn in_folder(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if !entry.file_type()?.is_dir() && is_manifest(entry.file_name().as_bytes()) {
            files.push(entry.path());
        }
    }
    files.sort_by(|one, other| one.as_os_str().as_bytes().cmp(other.as_os_str().as_bytes()));
    Ok(files)
}

/// Whether the name ends in `.yaml`, `.yml` or `.json`, in letters of any case.
fn is_manifest(name: &[u8]) -> bool {
    let dot = name.iter().rposition(|byte| *byte == b'.');
    let extension = dot.and_then(|dot| name.get(dot..)).unwrap_or_default();
    [".yaml", ".yml", ".json"].iter().any(|known| extension.eq_ignore_ascii_case(known.as_bytes()))
}

/// A document of a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Document<'a> {
    pub(super) text: &'a str,
    /// The number of lines before it.
    pub(super) lines_before: u64,
}

/// The documents of a file, without empty ones; or the text of kube-apiserver's error.
pub(super) fn documents(text: &str) -> Result<Vec<Document<'_>>, String> {
    let mut documents = Vec::new();
    let mut add = |begin: usize, end: usize, lines_before: u64| {
        let text = text.get(begin..end).unwrap_or_default();
        if !text.trim().is_empty() {
            documents.push(Document { text, lines_before });
        }
    };
    let (mut begin, mut position, mut lines_before) = (0, 0, 0);
    for (line, number) in text.split_inclusive('\n').zip(0..) {
        if let Some(rest) = line.strip_prefix("---") {
            let rest = rest.trim();
            if !rest.is_empty() && !rest.starts_with('#') {
                return Err(format!("invalid Yaml document separator: {rest}"));
            }
            // As kube-apiserver: a separator at the beginning of a document belongs to it.
            if position > begin {
                add(begin, position, lines_before);
                begin = position + line.len();
                lines_before = number + 1;
            }
        }
        position += line.len();
    }
    add(begin, text.len(), lines_before);
    Ok(documents)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manifests_are_those_that_kube_apiserver_reads() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for name in ["b.yaml", "a.YML", "c.Json", ".yaml", "d.yaml.bak", "yaml", "e.txt", "B.yaml", "é.yml"]
        {
            std::fs::write(path(name), "").unwrap();
        }
        std::fs::create_dir(path("folder.yaml")).unwrap();
        std::os::unix::fs::symlink("b.yaml", path("link.yaml")).unwrap();
        let names: Vec<String> = in_folder(folder.path())
            .unwrap()
            .iter()
            .map(|file| file.file_name().unwrap().to_str().unwrap().to_owned())
            .collect();
        assert_eq!(names, [".yaml", "B.yaml", "a.YML", "b.yaml", "c.Json", "link.yaml", "é.yml"]);
        in_folder(&path("none")).unwrap_err();
    }

    #[test]
    fn documents_are_separated_as_by_kube_apiserver() {
        type Documents = Result<Vec<(String, u64)>, String>;
        let texts = |text: &str| {
            let found = documents(text)?;
            Ok(found.iter().map(|one| (one.text.trim().to_owned(), one.lines_before)).collect::<Vec<_>>())
        };
        let document = |text: &str, before| (text.to_owned(), before);
        let cases: [(&str, Documents); 10] = [
            ("", Ok(vec![])),
            (" \n---\n\n", Ok(vec![])),
            ("---\n---\n \n", Ok(vec![document("---", 0)])),
            ("a: 1", Ok(vec![document("a: 1", 0)])),
            ("---\na: 1\n---\nb: 2\n", Ok(vec![document("---\na: 1", 0), document("b: 2", 3)])),
            ("a: 1\n--- # next\nb: 2", Ok(vec![document("a: 1", 0), document("b: 2", 2)])),
            ("a: 1\r\n---\r\nb: 2", Ok(vec![document("a: 1", 0), document("b: 2", 2)])),
            ("a: |\n  ---\n", Ok(vec![document("a: |\n  ---", 0)])),
            ("a: 1\n--- b\n", Err("invalid Yaml document separator: b".to_owned())),
            ("----\n", Err("invalid Yaml document separator: -".to_owned())),
        ];
        for (text, expected) in cases {
            assert_eq!(texts(text), expected, "{text:?}");
        }
    }
}

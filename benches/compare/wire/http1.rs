//! HTTP/1.1, one request at a time, without pipelining.

use super::{ClientCodec, Received, RequestTemplate};

const END: &[u8] = b"\r\n\r\n";

pub(crate) struct Http1 {
    request: Vec<u8>,
    /// The part of an incomplete header that was received.
    head: Vec<u8>,
    /// Remaining bytes of the body; `usize::MAX` for a watch.
    body: Option<usize>,
}

impl Http1 {
    pub(crate) fn new(template: &RequestTemplate) -> Self {
        let mut request = format!("GET {} HTTP/1.1\r\nhost: localhost\r\n", template.path);
        for (name, value) in &template.headers {
            request.extend([name, ": ", value, "\r\n"]);
        }
        request.push_str("\r\n");
        Self { request: request.into_bytes(), head: Vec::new(), body: None }
    }

    /// Checks the status of the header. Returns the length of the body.
    fn body_length(&self) -> usize {
        let head = std::str::from_utf8(&self.head).expect("a header is text");
        assert!(head.starts_with("HTTP/1.1 200 "), "unexpected status: {head}");
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().unwrap())
        });
        length.unwrap_or(usize::MAX)
    }
}

impl ClientCodec for Http1 {
    fn write_preface(&mut self, _: &mut Vec<u8>) {}

    fn write_request(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.request);
    }

    fn receive(&mut self, mut input: &[u8], _: &mut Vec<u8>) -> Received {
        let mut received = Received::default();
        while !input.is_empty() {
            let Some(left) = &mut self.body else {
                let known = self.head.len();
                self.head.extend_from_slice(input);
                // The end marker may have begun in the previous piece.
                let from = known.saturating_sub(END.len() - 1);
                let end = self.head[from..].windows(END.len()).position(|bytes| bytes == END);
                let Some(end) = end.map(|end| from + end + END.len()) else { break };
                input = &input[end - known..];
                self.head.truncate(end);
                self.body = Some(self.body_length());
                self.head.clear();
                received.headers += 1;
                continue;
            };
            let taken = input.len().min(*left);
            *left -= taken;
            input = &input[taken..];
            if *left == 0 {
                self.body = None;
                received.responses += 1;
            }
        }
        received
    }
}

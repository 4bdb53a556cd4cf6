//! What a decoder reports.

/// The sender of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// The client, such as kubectl.
    Client,
    /// The API server.
    Server,
}

/// An output of the process. A terminal has standard output alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum OutputChannel {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// An event of a session. Chunks of data end where frames or the given chunks end; their borders mean nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionEvent<'a> {
    /// Bytes to standard input.
    Input(&'a [u8]),
    /// The client has closed standard input.
    InputEnded,
    /// Bytes of an output.
    Output {
        /// The output.
        channel: OutputChannel,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// The client's terminal has a new size.
    Resize {
        /// The columns.
        columns: u16,
        /// The rows.
        rows: u16,
    },
    /// The process has ended.
    Exit {
        /// Its exit code.
        code: u8,
    },
    /// The session has failed.
    Failed {
        /// The server's message, shortened. It is not trusted.
        message: String,
    },
    /// A connection to a port of the pod.
    ConnectionOpened {
        /// The port.
        port: u16,
    },
    /// Bytes of a forwarded connection.
    Forwarded {
        /// The sender.
        from: Side,
        /// Their number.
        bytes: u64,
    },
    /// A connection to a port has ended.
    ConnectionClosed {
        /// The port.
        port: u16,
    },
    /// A side has closed the WebSocket.
    WebSocketClosed {
        /// The side.
        by: Side,
        /// The close code, if the frame has one.
        code: Option<u16>,
    },
    /// A part of the stream that this decoder could not read; the rest it can.
    Skipped {
        /// The sender.
        from: Side,
        /// The reason.
        why: &'static str,
    },
    /// From here on the bytes of this side are only counted.
    Unreadable {
        /// The sender.
        from: Side,
        /// The reason.
        why: &'static str,
    },
}

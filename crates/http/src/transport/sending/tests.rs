//! Responses that a client does not read: where they count, and what ends them.

use std::collections::BTreeMap;
use std::future::pending;

use h2::client::{ResponseFuture, SendRequest};
use http::{Request, Response};
use tokio::io::DuplexStream;
use tokio::task::{JoinHandle, yield_now};

use super::*;
use crate::transport::{CorkedStream, Role, UncorkOnPoll};

/// A body of pieces of this length.
struct Pieces {
    left: usize,
    length: usize,
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let Some(left) = self.left.checked_sub(1) else { return Poll::Ready(None) };
        self.left = left;
        Poll::Ready(Some(Ok(Frame::data(Bytes::from(vec![b'x'; self.length])))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }
}

impl CountedBody for Pieces {
    fn count_in(&mut self, _: &Arc<ExchangeBuffers>) {}
}

/// A client that reads nothing, and a server with this ledger.
struct Setup {
    client: SendRequest<Bytes>,
    server: h2::server::Connection<CorkedStream<DuplexStream>, SentBytes>,
    connection: Arc<ConnectionBuffers>,
    ledger: ByteLedger,
}

fn owner() -> Owner {
    Owner::flow("prod", "alice")
}

async fn settle() {
    for _ in 0..200 {
        yield_now().await;
    }
}

impl Setup {
    /// With this window for each stream of the client.
    async fn start(window: u32) -> Self {
        let (near, far) = tokio::io::duplex(1 << 20);
        let corked = CorkedStream::new(near, Role::Server, 1 << 20);
        let connection = corked.buffers();
        let mut builder = h2::client::Builder::new();
        builder.initial_window_size(window).initial_connection_window_size(1 << 20);
        let handshaking = tokio::spawn(async move { h2::server::Builder::new().handshake(corked).await });
        let (client, driver) = builder.handshake(far).await.unwrap();
        tokio::spawn(driver);
        let server = handshaking.await.unwrap().unwrap();
        Self { client, server, connection, ledger: ByteLedger::new(1 << 30) }
    }

    /// Requests something, and begins to send the response.
    async fn respond(
        mut self,
        body: Pieces,
    ) -> (ByteLedger, ResponseFuture, JoinHandle<Result<(), SendBodyError>>) {
        let request = Request::get("https://a/").body(()).unwrap();
        let (response, _) = self.client.send_request(request, true).unwrap();
        let (_, mut respond) = self.server.accept().await.unwrap().unwrap();
        let stream = respond.send_response(Response::new(()), false).unwrap();
        let account = ResponseAccount::new(None, self.connection, self.ledger.clone(), owner());
        let task = tokio::spawn(async move {
            let sent = send_response_body(body, stream, account).await;
            drop(respond);
            sent
        });
        let (mut server, client) = (self.server, self.client);
        tokio::spawn(async move {
            let _client = client;
            while server.accept().await.is_some() {}
        });
        settle().await;
        (self.ledger, response, task)
    }
}

#[tokio::test]
async fn what_a_client_does_not_read_counts_until_it_does() {
    let (ledger, response, task) =
        Setup::start(10_000).await.respond(Pieces { left: 3, length: 16_384 }).await;
    assert_eq!(
        ledger.held(),
        BTreeMap::from([(owner(), 16_384)]),
        "a piece that the window has room for in part"
    );
    let mut body = response.await.unwrap().into_body();
    let mut read = 0;
    while let Some(data) = body.data().await {
        let length = data.unwrap().len();
        read += length;
        body.flow_control().release_capacity(length).unwrap();
    }
    assert_eq!(read, 3 * 16_384);
    task.await.unwrap().unwrap();
    settle().await;
    assert_eq!((ledger.held(), ledger.registered()), (BTreeMap::new(), 0));
}

#[tokio::test]
async fn an_owner_that_gives_way_has_its_streams_reset() {
    let (ledger, response, task) =
        Setup::start(10_000).await.respond(Pieces { left: 3, length: 16_384 }).await;
    ledger.set_total(0);
    assert_eq!(ledger.sample().gave_way.into_keys().collect::<Vec<_>>(), [owner()]);
    assert!(matches!(task.await.unwrap(), Err(SendBodyError::Revoked)));
    settle().await;
    assert_eq!((ledger.held(), ledger.registered()), (BTreeMap::new(), 0));
    let mut body = response.await.unwrap().into_body();
    let error = loop {
        match body.data().await.unwrap() {
            Ok(data) => drop(body.flow_control().release_capacity(data.len())),
            Err(error) => break error,
        }
    };
    assert_eq!(error.reason(), Some(Reason::ENHANCE_YOUR_CALM));
}

// The end of a response that has no window would stay for as long as the client likes.
#[tokio::test]
async fn the_task_of_a_response_waits_for_an_end_without_a_window() {
    for (length, waits) in [(MAX_UNCOUNTED_BYTES, false), (MAX_UNCOUNTED_BYTES + 1, true)] {
        for left in [1, 2] {
            let (ledger, response, task) = Setup::start(1).await.respond(Pieces { left, length }).await;
            let waits = waits || left > 1;
            assert_eq!(task.is_finished(), !waits, "{left} of {length}");
            let held = left * length;
            let expected = if waits { BTreeMap::from([(owner(), held)]) } else { BTreeMap::new() };
            assert_eq!(ledger.held(), expected, "{left} of {length}");
            drop(response);
            settle().await;
            assert!(task.is_finished(), "its client has reset the stream");
            assert_eq!(ledger.registered(), 0);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn headers_wait_while_the_connection_is_behind() {
    let connection = ConnectionBuffers::new(0);
    let ledger = ByteLedger::new(1 << 30);
    let mut account = ResponseAccount::new(None, Arc::clone(&connection), ledger.clone(), owner());
    assert!(!account.is_behind());
    account.note_header(2 << 20);
    assert!(account.is_behind());
    let waiting = tokio::spawn(async move {
        let mut body = Pieces { left: 1, length: 1 };
        let waited = account.until_client_reads(700, &mut body, |_| Poll::Pending).await;
        (waited.is_ok(), account)
    });
    settle().await;
    assert_eq!(ledger.held(), BTreeMap::from([(owner(), 700)]));
    connection.note_drained();
    let (is_sent, mut account) = waiting.await.unwrap();
    assert!(is_sent && !account.is_behind());
    // Resets, time and revocations end the wait.
    account.note_header(2 << 20);
    let mut body = Pieces { left: 1, length: 1 };
    let reset = account.until_client_reads(1, &mut body, |_| Poll::Ready(Ok(Reason::CANCEL))).await;
    assert!(matches!(reset, Err(SendBodyError::Reset(Reason::CANCEL))));
    let began = Instant::now();
    let unread = account.until_client_reads(1, &mut body, |_| Poll::Pending).await;
    assert!(matches!(unread, Err(SendBodyError::Unread)));
    assert_eq!(began.elapsed(), UNREAD_TIMEOUT);
    ledger.set_total(0);
    ledger.sample();
    let revoked = account.until_client_reads(1, &mut body, |_| Poll::Pending).await;
    assert!(matches!(revoked, Err(SendBodyError::Revoked)));
}

// A client that reads nothing of its socket: what was given to HTTP/2 counts for the connection, until all is written.
#[tokio::test]
async fn output_counts_for_the_connection_until_it_is_drained() {
    let (near, mut far) = tokio::io::duplex(1000);
    let corked = CorkedStream::new(near, Role::Server, 1 << 20);
    let (buffers, mut writer) = (corked.buffers(), corked.clone());
    let ledger = ByteLedger::new(1 << 30);
    buffers.register(&ledger, owner());
    let writing = async move {
        tokio::io::AsyncWriteExt::write_all(&mut writer, &vec![b'x'; 100_000]).await.unwrap();
        pending::<()>().await;
    };
    tokio::spawn(UncorkOnPoll::new(writing, corked));
    buffers.give(5000);
    settle().await;
    assert_eq!(ledger.held(), BTreeMap::from([(owner(), 5000)]));
    let mut read = vec![0; 100_000];
    tokio::io::AsyncReadExt::read_exact(&mut far, &mut read).await.unwrap();
    settle().await;
    assert_eq!(ledger.held(), BTreeMap::from([(owner(), 0)]));
}

//! The export of spans: a bounded queue, and a task that sends batches to the collector by OTLP over gRPC.
//!
//! The queue never blocks who ends a span: when it is full, the owner with the most spans in it loses its newest, which is
//! counted; owners take turns in batches. Each call has a deadline, so that a collector that accepts and never answers costs one
//! batch at a time.
// go.opentelemetry.io/otel/sdk: trace/batch_span_processor.go; exporters/otlp/otlptrace/otlptracegrpc

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use http::{HeaderMap, Method, Request};
use portcullis_limits::Owner;
use portcullis_limits::turn_queue::{End, TurnQueue};
use portcullis_system::sync::lock;
use prost::Message as _;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout, timeout_at};

use crate::context::SpanContext;
use crate::wire;

/// The spans that wait for their export.
// go.opentelemetry.io/otel/sdk: trace/batch_span_processor.go, DefaultMaxQueueSize and the other defaults
const MAX_QUEUE: usize = 2048;
const MAX_BATCH: usize = 512;
const BATCH_INTERVAL: Duration = Duration::from_secs(5);
// exporters/otlp/otlptrace/internal: otlpconfig, DefaultTimeout
const EXPORT_TIMEOUT: Duration = Duration::from_secs(10);
const EXPORT_PATH: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
/// How long after a failure was reported no other one is.
const REPORT_INTERVAL: Duration = Duration::from_mins(1);
/// The limit on the bytes of an attribute or a name that a client chose.
const MAX_TEXT: usize = 1024;

/// The kind of a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpanKind {
    /// A step within the gateway.
    Internal = 1,
    /// The request of a client.
    Server = 2,
    /// The request to the backend.
    Client = 3,
}

impl SpanKind {
    fn number(self) -> i32 {
        match self {
            Self::Internal => 1,
            Self::Server => 2,
            Self::Client => 3,
        }
    }
}

/// Text that may be a client's, cut after 1 KiB when it is made: spans wait in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpanText(String);

impl From<&str> for SpanText {
    fn from(text: &str) -> Self {
        let end = text.floor_char_boundary(MAX_TEXT);
        Self(text.get(..end).unwrap_or_default().to_owned())
    }
}

/// The value of an attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AttributeValue {
    /// Text.
    Text(SpanText),
    /// A number.
    Number(i64),
}

/// A span that has ended.
#[derive(Debug, Clone)]
pub struct Span {
    /// Its place in the trace.
    pub context: SpanContext,
    /// The span that it belongs to.
    pub parent: Option<[u8; 8]>,
    /// The context of a client that is not trusted to continue its trace.
    pub link: Option<SpanContext>,
    /// The name.
    pub name: SpanText,
    /// The kind.
    pub kind: SpanKind,
    /// The start, in nanoseconds since 1970.
    pub start: u64,
    /// The end, in nanoseconds since 1970.
    pub end: u64,
    /// The attributes.
    pub attributes: Vec<(&'static str, AttributeValue)>,
    /// Whether it failed.
    pub failed: bool,
}

/// The spans that were exported and lost.
#[derive(Debug, Default)]
pub struct ExportCounts {
    exported: AtomicU64,
    queue_full: AtomicU64,
    failed: AtomicU64,
}

impl ExportCounts {
    /// The spans that the collector has accepted.
    pub fn exported(&self) -> u64 {
        self.exported.load(Ordering::Relaxed)
    }

    /// The spans that were dropped because too many waited.
    pub fn queue_full(&self) -> u64 {
        self.queue_full.load(Ordering::Relaxed)
    }

    /// The spans that were dropped because the collector could not be reached, refused them or did not answer.
    pub fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }
}

/// Why a batch was not exported.
#[derive(Debug, thiserror::Error)]
enum ExportError {
    #[error("cannot connect: {0}")]
    Connect(#[from] std::io::Error),
    #[error("the connection broke: {0}")]
    Http2(#[from] h2::Error),
    #[error("the collector answered {0}")]
    Refused(String),
    #[error("the request cannot be made: {0}")]
    Request(#[from] http::Error),
}

/// Accepts spans that have ended.
#[derive(Debug, Clone)]
pub struct SpanQueue {
    waiting: Arc<Mutex<WaitingSpans>>,
    /// Tells the exporter that there are spans, and that there is no queue any more.
    wakes: mpsc::Sender<()>,
    counts: Arc<ExportCounts>,
}

#[derive(Debug, Default)]
struct WaitingSpans {
    spans: TurnQueue<Span>,
    is_closed: bool,
}

impl SpanQueue {
    /// Adds a span. If too many wait, the owner with the most loses its newest. Never blocks.
    // threat: span-flood
    pub fn push(&self, owner: Owner, span: Span) {
        let (len, dropped) = {
            let mut waiting = lock(&self.waiting);
            if waiting.is_closed {
                (0, Some(span))
            } else {
                waiting.spans.push(owner, span);
                let is_full = waiting.spans.len() > MAX_QUEUE;
                let dropped = is_full.then(|| waiting.spans.drop_of_longest(End::Newest)).flatten();
                (waiting.spans.len(), dropped)
            }
        };
        if dropped.is_some() {
            self.counts.queue_full.fetch_add(1, Ordering::Relaxed);
        }
        // The first one begins the time of a batch. Another signal that has not been taken does as well.
        if len == 1 || len >= MAX_BATCH {
            self.wakes.try_send(()).ok();
        }
    }

    /// What became of the spans.
    pub fn counts(&self) -> &Arc<ExportCounts> {
        &self.counts
    }
}

/// The settings of the export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportSettings {
    /// Host and port of the collector.
    pub endpoint: String,
    /// The name of this service.
    pub service: String,
    /// The name of this instance.
    pub instance: String,
}

/// Sends batches until every [`SpanQueue`] is dropped, and then the spans that still wait.
#[derive(Debug)]
pub struct Exporter {
    settings: ExportSettings,
    waiting: Arc<Mutex<WaitingSpans>>,
    wakes: mpsc::Receiver<()>,
    counts: Arc<ExportCounts>,
    report: fn(&str),
    reported: Option<Instant>,
    connection: Option<CollectorConnection>,
}

#[derive(Debug)]
struct CollectorConnection {
    sender: SendRequest<Bytes>,
    driver: AbortHandle,
}

impl Drop for CollectorConnection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// Creates a queue and the exporter that empties it. `report` gets the reason of a failure, at most once a minute.
pub fn exporter(settings: ExportSettings, report: fn(&str)) -> (SpanQueue, Exporter) {
    let (sender, wakes) = mpsc::channel(1);
    let (waiting, counts) = (Arc::default(), Arc::new(ExportCounts::default()));
    let queue = SpanQueue { waiting: Arc::clone(&waiting), wakes: sender, counts: Arc::clone(&counts) };
    (queue, Exporter { settings, waiting, wakes, counts, report, reported: None, connection: None })
}

impl Exporter {
    /// Runs until `stop` or until every queue is dropped, and then exports the spans that still wait. Each batch takes
    /// at most ten seconds; the caller bounds the whole.
    pub async fn run(mut self, stop: impl Future<Output = ()>) {
        let mut stop = pin!(stop);
        loop {
            let goes_on = tokio::select! {
                goes_on = self.batch_is_ready() => goes_on,
                () = &mut stop => {
                    lock(&self.waiting).is_closed = true;
                    false
                }
            };
            if !goes_on {
                break;
            }
            let batch = self.take_batch();
            self.export(batch).await;
        }
        loop {
            let rest = self.take_batch();
            if rest.is_empty() {
                return;
            }
            self.export(rest).await;
        }
    }

    /// Waits until there is a full batch, or its time is over. False once every queue is dropped.
    async fn batch_is_ready(&mut self) -> bool {
        while self.len() == 0 {
            if self.wakes.recv().await.is_none() {
                return false;
            }
        }
        let deadline = Instant::now() + BATCH_INTERVAL;
        while self.len() < MAX_BATCH {
            match timeout_at(deadline, self.wakes.recv()).await {
                Ok(Some(())) => {}
                Ok(None) => return false,
                Err(_) => return true,
            }
        }
        true
    }

    fn len(&self) -> usize {
        lock(&self.waiting).spans.len()
    }

    /// Takes at most one batch, in turns of the owners.
    fn take_batch(&self) -> Vec<Span> {
        let mut waiting = lock(&self.waiting);
        std::iter::from_fn(|| waiting.spans.take(End::Oldest)).take(MAX_BATCH).collect()
    }

    async fn export(&mut self, batch: Vec<Span>) {
        if batch.is_empty() {
            return;
        }
        let count = u64::try_from(batch.len()).unwrap_or(u64::MAX);
        let message = message(&self.settings, batch);
        let failure = match timeout(EXPORT_TIMEOUT, self.send(message)).await {
            Ok(Ok(())) => {
                self.counts.exported.fetch_add(count, Ordering::Relaxed);
                return;
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("the collector did not answer within {EXPORT_TIMEOUT:?}"),
        };
        self.connection = None;
        self.counts.failed.fetch_add(count, Ordering::Relaxed);
        let now = Instant::now();
        if self.reported.is_none_or(|last| now.duration_since(last) >= REPORT_INTERVAL) {
            self.reported = Some(now);
            (self.report)(&failure);
        }
    }

    /// One gRPC call.
    async fn send(&mut self, message: Bytes) -> Result<(), ExportError> {
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => connect(&self.settings.endpoint).await?,
        };
        let mut sender = connection.sender.clone().ready().await?;
        let request = Request::builder()
            .method(Method::POST)
            .uri(format!("http://{}{EXPORT_PATH}", self.settings.endpoint))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .header("user-agent", "portcullis")
            .body(())?;
        let (response, mut stream) = sender.send_request(request, false)?;
        send_all(&mut stream, message).await?;
        let response = response.await?;
        let (head, mut body) = response.into_parts();
        // The answer may name rejected spans; nothing is done about them.
        while let Some(data) = body.data().await {
            let length = data?.len();
            body.flow_control().release_capacity(length)?;
        }
        let trailers = body.trailers().await?.unwrap_or_default();
        let status =
            |headers: &HeaderMap| headers.get("grpc-status").map(|status| status.as_bytes().to_vec());
        match status(&trailers).or_else(|| status(&head.headers)) {
            Some(status) if status == b"0" => {
                self.connection = Some(connection);
                Ok(())
            }
            Some(status) => Err(ExportError::Refused(format!("gRPC status {}", status.escape_ascii()))),
            None => Err(ExportError::Refused(format!("HTTP status {}", head.status))),
        }
    }
}

/// Sends a whole message as the receiver's window allows.
async fn send_all(stream: &mut h2::SendStream<Bytes>, mut message: Bytes) -> Result<(), h2::Error> {
    while !message.is_empty() {
        stream.reserve_capacity(message.len());
        match poll_fn(|cx| stream.poll_capacity(cx)).await {
            Some(capacity) => {
                let part = message.split_to(capacity?.min(message.len()));
                stream.send_data(part, message.is_empty())?;
            }
            None => return Ok(()),
        }
    }
    Ok(())
}

async fn connect(endpoint: &str) -> Result<CollectorConnection, ExportError> {
    let stream = TcpStream::connect(endpoint).await?;
    stream.set_nodelay(true)?;
    let (sender, connection) = h2::client::handshake(stream).await?;
    let driver = tokio::spawn(async move {
        // The next call finds a broken connection.
        connection.await.ok();
    });
    Ok(CollectorConnection { sender, driver: driver.abort_handle() })
}

/// A gRPC message: a byte (not compressed), its length, the encoded request.
fn message(settings: &ExportSettings, batch: Vec<Span>) -> Bytes {
    let text = |key: &str, value: &str| attribute(key, AttributeValue::Text(value.into()));
    let resource = wire::Resource {
        attributes: vec![
            text("service.name", &settings.service),
            text("service.instance.id", &settings.instance),
        ],
    };
    let scope = wire::InstrumentationScope {
        name: "portcullis".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let spans = batch.into_iter().map(encoded).collect();
    let request = wire::ExportTraceServiceRequest {
        resource_spans: vec![wire::ResourceSpans {
            resource: Some(resource),
            scope_spans: vec![wire::ScopeSpans { scope: Some(scope), spans }],
        }],
    };
    let encoded = request.encode_to_vec();
    let length = u32::try_from(encoded.len()).unwrap_or(u32::MAX);
    [&[0], &length.to_be_bytes()[..], &encoded].concat().into()
}

fn encoded(span: Span) -> wire::WireSpan {
    let Span { context, parent, link, name, kind, start, end, attributes, failed } = span;
    wire::WireSpan {
        trace_id: context.trace_id.to_vec(),
        span_id: context.span_id.to_vec(),
        trace_state: context.trace_state,
        parent_span_id: parent.map(|parent| parent.to_vec()).unwrap_or_default(),
        name: name.0,
        kind: kind.number(),
        start_time_unix_nano: start,
        end_time_unix_nano: end,
        attributes: attributes.into_iter().map(|(key, value)| attribute(key, value)).collect(),
        links: link
            .map(|link| wire::Link {
                trace_id: link.trace_id.to_vec(),
                span_id: link.span_id.to_vec(),
                trace_state: link.trace_state,
            })
            .into_iter()
            .collect(),
        status: failed.then_some(wire::WireStatus { code: STATUS_ERROR }),
        flags: u32::from(context.sampled),
    }
}

const STATUS_ERROR: i32 = 2;

fn attribute(key: &str, value: AttributeValue) -> wire::KeyValue {
    let value = match value {
        AttributeValue::Text(SpanText(text)) => wire::Value::Text(text),
        AttributeValue::Number(number) => wire::Value::Number(number),
    };
    wire::KeyValue { key: key.to_owned(), value: Some(wire::AnyValue { value: Some(value) }) }
}

#[cfg(test)]
mod tests;

use std::net::SocketAddr;

use http::Response;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpListener;

use super::*;

fn settings(endpoint: SocketAddr) -> ExportSettings {
    ExportSettings {
        endpoint: endpoint.to_string(),
        service: "apiserver".to_owned(),
        instance: "gateway-1".to_owned(),
    }
}

fn span(name: &str) -> Span {
    Span {
        context: SpanContext::root([1; 16], [2; 8], true),
        parent: Some([3; 8]),
        link: Some(SpanContext::root([4; 16], [5; 8], false)),
        name: name.into(),
        kind: SpanKind::Server,
        start: 10,
        end: 20,
        attributes: vec![
            ("http.target", AttributeValue::Text("/api".into())),
            ("http.status_code", AttributeValue::Number(200)),
        ],
        failed: true,
    }
}

/// A collector that answers each call with this gRPC status, and sends what it received.
async fn collector(
    status: &'static str,
) -> (SocketAddr, mpsc::UnboundedReceiver<wire::ExportTraceServiceRequest>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, receiver) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let sender = sender.clone();
            tokio::spawn(async move {
                let mut connection = h2::server::handshake(stream).await.unwrap();
                while let Some(Ok((request, mut respond))) = connection.accept().await {
                    let sender = sender.clone();
                    tokio::spawn(async move {
                        assert_eq!(request.uri().path(), EXPORT_PATH);
                        assert_eq!(request.headers()["content-type"], "application/grpc");
                        let mut body = request.into_body();
                        let mut message = Vec::new();
                        while let Some(Ok(data)) = body.data().await {
                            body.flow_control().release_capacity(data.len()).unwrap();
                            message.extend_from_slice(&data);
                        }
                        let length = u32::from_be_bytes(message[1..5].try_into().unwrap());
                        assert_eq!((message[0], usize::try_from(length).unwrap()), (0, message.len() - 5));
                        let head = Response::builder().header("content-type", "application/grpc").body(());
                        let mut answer = respond.send_response(head.unwrap(), false).unwrap();
                        answer.send_data(Bytes::from_static(&[0, 0, 0, 0, 0]), false).unwrap();
                        let trailers = HeaderMap::from_iter([(
                            http::HeaderName::from_static("grpc-status"),
                            http::HeaderValue::from_static(status),
                        )]);
                        answer.send_trailers(trailers).unwrap();
                        let decoded = wire::ExportTraceServiceRequest::decode(&message[5..]).unwrap();
                        sender.send(decoded).ok();
                    });
                }
            });
        }
    });
    (address, receiver)
}

#[tokio::test]
async fn spans_arrive_at_the_collector() {
    let (address, mut received) = collector("0").await;
    let (queue, exporter) = exporter(settings(address), |failure| panic!("{failure}"));
    let counts = Arc::clone(queue.counts());
    queue.push(Owner::Gateway, span("GET /api/v1/pods"));
    queue.push(Owner::Gateway, span(&"é".repeat(1000)));
    drop(queue);
    exporter.run(std::future::pending()).await;
    assert_eq!((counts.exported(), counts.failed(), counts.queue_full()), (2, 0, 0));
    let request = received.recv().await.unwrap();
    let [resource_spans] = request.resource_spans.as_slice() else { panic!("{request:?}") };
    let attributes = &resource_spans.resource.as_ref().unwrap().attributes;
    assert_eq!(attributes[0].key, "service.name");
    let spans = &resource_spans.scope_spans[0].spans;
    assert_eq!(spans[0], encoded(span("GET /api/v1/pods")));
    assert_eq!((spans[0].kind, spans[0].parent_span_id.as_slice()), (2, [3; 8].as_slice()));
    assert_eq!(spans[1].name.len(), 1024, "names are cut at a character");
}

#[tokio::test]
async fn more_than_a_window_of_spans_arrives_in_several_batches() {
    let (address, mut received) = collector("0").await;
    let (queue, exporter) = exporter(settings(address), |failure| panic!("{failure}"));
    let counts = Arc::clone(queue.counts());
    for _ in 0..1200 {
        queue.push(Owner::Gateway, span(&"a".repeat(1000)));
    }
    drop(queue);
    exporter.run(std::future::pending()).await;
    assert_eq!(counts.exported(), 1200);
    let mut sizes = Vec::new();
    while let Ok(request) = received.try_recv() {
        sizes.push(request.resource_spans[0].scope_spans[0].spans.len());
    }
    assert_eq!(sizes, [512, 512, 176]);
}

#[tokio::test]
async fn refused_spans_are_counted() {
    let (address, _received) = collector("14").await;
    let (queue, exporter) = exporter(settings(address), |failure| {
        assert_eq!(failure, "the collector answered gRPC status 14");
    });
    let counts = Arc::clone(queue.counts());
    queue.push(Owner::Gateway, span("a"));
    drop(queue);
    exporter.run(std::future::pending()).await;
    assert_eq!((counts.exported(), counts.failed()), (0, 1));
}

#[tokio::test]
async fn an_unreachable_collector_costs_the_spans() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let (queue, exporter) =
        exporter(settings(address), |failure| assert!(failure.starts_with("cannot connect")));
    let counts = Arc::clone(queue.counts());
    queue.push(Owner::Gateway, span("a"));
    drop(queue);
    exporter.run(std::future::pending()).await;
    assert_eq!((counts.exported(), counts.failed()), (0, 1));
}

/// The collector accepts connections and never answers. The queue keeps its bound, and each batch its deadline.
#[tokio::test(start_paused = true)]
async fn a_silent_collector_is_bounded() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let mut held = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            stream.read_u8().await.ok();
            held.push(stream);
        }
    });
    let (queue, exporter) = exporter(settings(address), |_| {});
    let counts = Arc::clone(queue.counts());
    for _ in 0..MAX_QUEUE + 100 {
        queue.push(Owner::Gateway, span("a"));
    }
    assert_eq!(counts.queue_full(), 100);
    drop(queue);
    let began = Instant::now();
    exporter.run(std::future::pending()).await;
    assert_eq!(counts.failed(), u64::try_from(MAX_QUEUE).unwrap());
    let batches = u32::try_from(MAX_QUEUE / MAX_BATCH).unwrap();
    assert!(began.elapsed() < EXPORT_TIMEOUT * batches + BATCH_INTERVAL * 2, "{:?}", began.elapsed());
}

// Nothing empties the queue: one owner fills it, and others have their spans in the next batch all the same.
#[tokio::test]
async fn who_fills_the_queue_loses_its_own_spans() {
    let (address, mut received) = collector("0").await;
    let (queue, exporter) = exporter(settings(address), |failure| panic!("{failure}"));
    let counts = Arc::clone(queue.counts());
    let flood = Owner::Tenant("flood".into());
    (0..MAX_QUEUE + 100).for_each(|_| queue.push(flood.clone(), span("flood")));
    (0..200).for_each(|_| queue.push(Owner::flow("prod", "alice"), span("calm")));
    (0..1000).for_each(|_| queue.push(flood.clone(), span("flood")));
    assert_eq!(counts.queue_full(), 100 + 200 + 1000);
    drop(queue);
    exporter.run(std::future::pending()).await;
    let request = received.recv().await.unwrap();
    let spans = &request.resource_spans[0].scope_spans[0].spans;
    assert_eq!(spans.iter().filter(|span| span.name == "calm").count(), 200);
    assert_eq!(counts.exported(), u64::try_from(MAX_QUEUE).unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_few_spans_wait_for_their_time_and_a_batch_does_not() {
    let (address, mut received) = collector("0").await;
    let (queue, exporter) = exporter(settings(address), |failure| panic!("{failure}"));
    let running = tokio::spawn(exporter.run(std::future::pending()));
    let began = Instant::now();
    for (count, waits) in [(3, true), (MAX_BATCH, false), (MAX_BATCH + 3, false), (2, true)] {
        let before = Instant::now();
        (0..count).for_each(|_| queue.push(Owner::Gateway, span("a")));
        received.recv().await.unwrap();
        assert_eq!(before.elapsed() >= BATCH_INTERVAL, waits, "{count} after {:?}", began.elapsed());
    }
    drop(queue);
    running.await.unwrap();
}

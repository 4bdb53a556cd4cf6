//! Traces as kube-apiserver makes them: the W3C trace context of a request ([`context`]), whether it is sampled
//! ([`sampling`]), and the export of spans to a collector by OTLP over gRPC ([`export`]).
//!
//! This crate knows nothing of the gateway. It has no dependency that the gateway does not have: the official exporter
//! would bring a second gRPC stack. Like kube-apiserver's, the connection to the collector is in clear text; run the
//! collector beside the gateway.
//!
//! | module | upstream |
//! |---|---|
//! | [`context`] | go.opentelemetry.io/otel `propagation/trace_context.go` |
//! | [`sampling`] | k8s.io/component-base `tracing/utils.go`; go.opentelemetry.io/otel/sdk `trace/sampling.go` |
//! | [`export`] | go.opentelemetry.io/otel/sdk `trace/batch_span_processor.go`; `exporters/otlp/otlptrace/otlptracegrpc` |

pub mod context;
pub mod export;
pub mod sampling;
mod wire;

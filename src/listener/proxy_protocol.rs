//! The PROXY protocol: the header by which a layer-4 load balancer names the client of a connection. Only connections
//! from the networks of `--proxy-protocol-trusted-networks` have one, and each of them must. [`header`] parses it.
//!
//! Reads no byte beyond the header: the TLS handshake follows it.
// haproxy: doc/proxy-protocol.txt, version 2020/03/05

pub(crate) mod header;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::time::timeout;

use super::settings::{ProxyProtocol, ProxyProtocolVersions};
use header::{
    HeaderError, MAX_V1_LINE, MAX_V2_LENGTH, ProxyHeader, V1_PREFIX, V2_FIXED, V2_SIGNATURE, parse_v1,
    parse_v2, v2_length,
};

/// Why a connection of a load balancer is closed before its TLS handshake.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProxyProtocolError {
    /// The header is malformed, or another protocol.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// The connection broke, or ended before the header did.
    #[error("the connection ended before its PROXY protocol header: {0}")]
    Closed(#[source] io::Error),
    /// The header did not come in time.
    #[error("no complete PROXY protocol header within {0:?}")]
    Timeout(Duration),
}

impl ProxyProtocolError {
    /// The value of the metric's label `reason`.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::Header(HeaderError::UnacceptedVersion { .. }) => "unaccepted_version",
            Self::Header(_) => "malformed",
            Self::Closed(_) => "closed",
            Self::Timeout(_) => "timeout",
        }
    }
}

impl ProxyProtocol {
    /// Whether connections from this address begin with a header.
    // threat: forged-proxy-header
    pub(super) fn expects_header_from(&self, peer: IpAddr) -> bool {
        self.trusted_networks.iter().any(|network| network.contains(peer))
    }

    /// The settings, if connections from this address begin with a header.
    pub(super) fn for_peer(settings: Option<&Arc<Self>>, peer: IpAddr) -> Option<Arc<Self>> {
        settings.filter(|settings| settings.expects_header_from(peer)).map(Arc::clone)
    }

    /// Reads the header at the beginning of a connection. Nothing else of the connection is read.
    pub(super) async fn read_header<S: AsyncRead + Unpin>(
        &self,
        stream: &mut S,
        limit: Duration,
    ) -> Result<ProxyHeader, ProxyProtocolError> {
        match timeout(limit, self.read(stream)).await {
            Ok(header) => header,
            Err(_) => Err(ProxyProtocolError::Timeout(limit)),
        }
    }

    async fn read<S: AsyncRead + Unpin>(&self, stream: &mut S) -> Result<ProxyHeader, ProxyProtocolError> {
        // The shortest header of version 1 has 15 bytes, so that this is part of the header in both versions.
        let mut beginning = [0; V2_SIGNATURE.len()];
        stream.read_exact(&mut beginning).await.map_err(ProxyProtocolError::Closed)?;
        if beginning == V2_SIGNATURE {
            self.versions.expect(2)?;
            return read_v2(stream).await;
        }
        if !beginning.starts_with(V1_PREFIX) {
            return Err(HeaderError::Missing.into());
        }
        self.versions.expect(1)?;
        read_v1(&beginning, stream).await
    }
}

async fn read_v2<S: AsyncRead + Unpin>(stream: &mut S) -> Result<ProxyHeader, ProxyProtocolError> {
    let mut fixed = [0; V2_FIXED];
    stream.read_exact(&mut fixed).await.map_err(ProxyProtocolError::Closed)?;
    let length = v2_length(fixed)?;
    let mut rest = [0; MAX_V2_LENGTH];
    let rest = rest.get_mut(..length).unwrap_or_default();
    stream.read_exact(rest).await.map_err(ProxyProtocolError::Closed)?;
    Ok(parse_v2(fixed, rest)?)
}

/// Reads the rest of a line byte by byte: its length is unknown, and the bytes after it belong to TLS.
async fn read_v1<S: AsyncRead + Unpin>(
    beginning: &[u8],
    stream: &mut S,
) -> Result<ProxyHeader, ProxyProtocolError> {
    let mut line = Vec::with_capacity(MAX_V1_LINE);
    line.extend_from_slice(beginning);
    while !line.ends_with(b"\n") {
        if line.len() == MAX_V1_LINE {
            return Err(HeaderError::TooLong.into());
        }
        line.push(stream.read_u8().await.map_err(ProxyProtocolError::Closed)?);
    }
    Ok(parse_v1(&line)?)
}

/// Reads a header of either version at the beginning of `data`, for the comparison with another implementation and
/// for fuzzing. Returns the client that it names, if it names one, and the number of bytes of the header.
pub fn read_complete_header(data: &[u8]) -> Result<(Option<SocketAddr>, usize), String> {
    let settings = ProxyProtocol { versions: ProxyProtocolVersions::Any, trusted_networks: Vec::new() };
    let mut rest = data;
    // A slice never waits.
    let read = settings.read(&mut rest).now_or_never().ok_or("the reader waits")?;
    let client = match read.map_err(|error| error.to_string())? {
        ProxyHeader::Local => None,
        ProxyHeader::Proxied(client) => Some(client),
    };
    Ok((client, data.len() - rest.len()))
}

#[cfg(test)]
mod tests;

//! The D-Bus session bus of the user: its addresses, and a connection to it.
//!
//! Secrets are not encrypted on their way to the service, so the bus must be a Unix socket, and its server a process of this
//! user. Both are checked before the first byte is sent.
// threat: stolen-login-cache
// D-Bus Specification 0.43, "Server Addresses"

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;
use std::time::Duration;

use portcullis_openid::error::shortened;
use tokio::net::UnixStream;
use tokio::time::sleep;
use zbus::Connection;
use zbus::connection::Builder;

use super::KeyringError;

/// The environment variable of the addresses.
const VARIABLE: &str = "DBUS_SESSION_BUS_ADDRESS";
/// How often a socket is tried again whose queue of new connections is full.
const CONNECT_INTERVAL: Duration = Duration::from_millis(20);

/// The addresses of a bus, in the order in which they are tried.
#[derive(Debug, Clone)]
pub(super) struct BusAddresses(Vec<BusAddress>);

/// The address of a Unix socket.
#[derive(Debug, Clone, PartialEq, Eq)]
struct BusAddress {
    /// With a leading zero byte: the name of an abstract socket.
    socket: PathBuf,
    /// The identity of the bus.
    guid: Option<String>,
}

impl BusAddresses {
    /// The bus of the session: that of the environment, otherwise the one in the user's runtime directory.
    pub(super) fn of_session() -> Result<Self, KeyringError> {
        if let Some(addresses) = std::env::var_os(VARIABLE) {
            return Self::parse(&addresses.to_string_lossy());
        }
        let default = || format!("/run/user/{}", rustix::process::geteuid().as_raw()).into();
        let directory: PathBuf = std::env::var_os("XDG_RUNTIME_DIR").unwrap_or_else(default).into();
        Ok(Self(vec![BusAddress { socket: directory.join("bus"), guid: None }]))
    }

    /// The Unix sockets of a list of addresses.
    pub(super) fn parse(addresses: &str) -> Result<Self, KeyringError> {
        let sockets: Vec<_> = addresses.split(';').filter_map(BusAddress::parse).collect();
        if sockets.is_empty() {
            return Err(KeyringError::NoBus(format!("{VARIABLE} is not the address of a Unix socket")));
        }
        Ok(Self(sockets))
    }

    /// Connects to the bus, whose server must be a process of this user.
    pub(super) async fn connect(&self) -> Result<Connection, KeyringError> {
        let (stream, address) = self.stream(rustix::process::geteuid().as_raw()).await?;
        let bus = Builder::unix_stream(stream).build().await;
        let bus = bus.map_err(|error| KeyringError::NoBus(shortened(&error.to_string())))?;
        match &address.guid {
            Some(guid) if !guid.eq_ignore_ascii_case(bus.server_guid().as_str()) => {
                Err(KeyringError::NoBus(format!("another bus than that of {VARIABLE} answers at {address}")))
            }
            _ => Ok(bus),
        }
    }

    /// A stream to the first socket that accepts connections, if its server is a process of `owner`.
    async fn stream(&self, owner: u32) -> Result<(UnixStream, &BusAddress), KeyringError> {
        let mut problems = Vec::new();
        for address in &self.0 {
            match address.connect().await {
                Ok(stream) => return check_owner(&stream, owner).map(|()| (stream, address)),
                Err(error) => problems.push(format!("{address}: {error}")),
            }
        }
        Err(KeyringError::NoBus(shortened(&problems.join("; "))))
    }
}

/// The name of a socket may be left from an earlier session, and another user could take it then.
// SO_PEERCRED: zbus also asks for SO_PEERPIDFD, which fails before Linux 6.17 if the process that called listen() has ended,
// as that of `dbus-daemon --fork` has.
fn check_owner(stream: &UnixStream, owner: u32) -> Result<(), KeyringError> {
    let peer = stream.peer_cred().map_err(|error| KeyringError::UnknownOwner(error.to_string()))?;
    if peer.uid() == owner { Ok(()) } else { Err(KeyringError::ForeignBus) }
}

impl BusAddress {
    /// `None`: not the address of a Unix socket to connect to.
    fn parse(address: &str) -> Option<Self> {
        let (mut socket, mut guid) = (None, None);
        for option in address.strip_prefix("unix:")?.split(',') {
            let (key, value) = option.split_once('=')?;
            let value = unescaped(value).filter(|value| !value.is_empty())?;
            match key {
                "path" if socket.is_none() => socket = Some(value),
                "abstract" if socket.is_none() => socket = Some([b"\0".as_slice(), &value].concat()),
                "path" | "abstract" => return None,
                "guid" => guid = String::from_utf8(value).ok(),
                _ => {}
            }
        }
        Some(Self { socket: OsString::from_vec(socket?).into(), guid })
    }

    async fn connect(&self) -> io::Result<UnixStream> {
        loop {
            match UnixStream::connect(&self.socket).await {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => sleep(CONNECT_INTERVAL).await,
                connected => return connected,
            }
        }
    }
}

impl fmt::Display for BusAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.socket.to_string_lossy();
        match name.strip_prefix('\0') {
            Some(name) => write!(f, "the abstract socket {name}"),
            None => f.write_str(&name),
        }
    }
}

/// The bytes of a value; `None`: an escape is incomplete.
fn unescaped(value: &str) -> Option<Vec<u8>> {
    let digit = |byte: Option<u8>| char::from(byte?).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let (mut bytes, mut plain) = (value.bytes(), Vec::new());
    while let Some(byte) = bytes.next() {
        plain.push(if byte == b'%' { (digit(bytes.next())? << 4) | digit(bytes.next())? } else { byte });
    }
    Some(plain)
}

#[cfg(test)]
mod tests;

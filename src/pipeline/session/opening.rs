//! Opens a session by the policy of its cluster: refuses one too many, and one that must be recorded and cannot be.
//!
//! The first document of a recording is stored before the request is forwarded: a command may run before the API server responds.

use std::net::IpAddr;
use std::sync::Arc;

use http::HeaderValue;
use portcullis_http::hop_by_hop;
use portcullis_http::identity::Identity;
use portcullis_kubernetes::user::UserInfo;
use portcullis_limits::Owner;
use portcullis_sessions::decoder::SessionKind;
use portcullis_sessions::policy::{RecordingLevel, SessionAttributes, SessionDecision};
use portcullis_sessions::recording::metadata::{SessionStart, SessionUser};

use super::{SessionOptions, kind_of, may_be_unreadable};
use crate::pipeline::stages::Admitted;
use crate::sessions::{ClusterSessions, RecordingFailure, SessionPermit, SessionRecording, TooManySessions};

/// The extra attribute of a user with the ID of its credential.
// apiserver: pkg/authentication/user/user.go, CredentialIDKey
const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

/// A request for a session under a policy.
pub(in crate::pipeline) struct SessionRequest {
    sessions: Arc<ClusterSessions>,
    kind: SessionKind,
    decision: SessionDecision,
    user: Identity,
    owner: Owner,
    start: SessionStart,
    /// Whether it may get a protocol that cannot be decoded.
    may_be_unreadable: bool,
}

/// A session that the policy permits. Dropped before its request is sent, it leaves no recording.
#[derive(Debug)]
pub(in crate::pipeline) struct PermittedSession {
    pub(super) kind: SessionKind,
    pub(super) decision: SessionDecision,
    /// Whether the user has a terminal.
    pub(super) tty: bool,
    pub(super) recording: Option<SessionRecording>,
    /// The place among the sessions of the user.
    pub(super) permit: Option<SessionPermit>,
}

/// Why a session is refused.
#[derive(Debug, thiserror::Error)]
pub(in crate::pipeline) enum SessionRefusal {
    #[error(transparent)]
    TooMany(#[from] TooManySessions),
    #[error("the session must be recorded, and the client offers a protocol that cannot be")]
    UnreadableProtocol,
    #[error("the session must be recorded, and cannot be: {0}")]
    NotRecorded(#[source] RecordingFailure),
}

impl SessionRefusal {
    /// The reason in metrics and the audit.
    pub(in crate::pipeline) fn reason(&self) -> &'static str {
        match self {
            Self::TooMany(_) => "sessions",
            Self::UnreadableProtocol => "protocol",
            Self::NotRecorded(_) => "recording",
        }
    }
}

impl SessionRequest {
    /// The session that a request opens; `None` for another request, and without a policy. The policy sees the client, never
    /// the user whom it impersonates.
    pub(in crate::pipeline) fn of(
        admitted: &Admitted,
        client: IpAddr,
        audit_id: &HeaderValue,
    ) -> Option<Box<Self>> {
        let sessions = Arc::clone(admitted.cluster().sessions.as_ref()?);
        let info = admitted.info();
        let kind = kind_of(info)?;
        let headers = admitted.request().headers();
        let upgrade = hop_by_hop::requested_upgrade(headers)?;
        let resource = info.resource()?;
        let user = admitted.requester().clone();
        let decision = sessions.decide(&SessionAttributes {
            user: &user.name,
            groups: &user.groups,
            namespace: resource.namespace,
            kind,
        });
        let SessionOptions { container, command, tty, stdin } = SessionOptions::of(kind, admitted.query());
        let acts_as = admitted.impersonated().or(admitted.asked_of_backend());
        let credential_id = user.extra.get(CREDENTIAL_ID).and_then(|ids| ids.first()).cloned();
        let start = SessionStart {
            audit_id: audit_id.to_str().unwrap_or_default().to_owned(),
            user: named(acts_as.unwrap_or(&user)),
            client: acts_as.map(|_| named(&user)),
            credential_id,
            namespace: resource.namespace.to_owned(),
            pod: info.object_name().to_owned(),
            subresource: kind.as_str().to_owned(),
            container,
            command,
            tty,
            stdin,
            ..SessionStart::default()
        };
        let may_be_unreadable = may_be_unreadable(&upgrade, headers);
        let owner = admitted.owner(client);
        Some(Box::new(Self { sessions, kind, decision, user, owner, start, may_be_unreadable }))
    }

    /// The kind of the session.
    pub(in crate::pipeline) fn kind(&self) -> SessionKind {
        self.kind
    }

    /// Takes a place for the session, and begins its recording if a rule wants one. One that a rule does not require may fail.
    // threat: unrecorded-session
    pub(in crate::pipeline) async fn permit(self) -> Result<Box<PermittedSession>, SessionRefusal> {
        let Self { sessions, kind, decision, user, owner, start, may_be_unreadable } = self;
        let permit = sessions.count(&user.name, decision.max_sessions_per_user)?;
        let tty = start.tty;
        let recording = match decision.level {
            RecordingLevel::None => None,
            level => {
                if decision.required && level >= RecordingLevel::Output && may_be_unreadable {
                    return Err(SessionRefusal::UnreadableProtocol);
                }
                match sessions.record(owner, start, decision).await {
                    Ok(recording) => Some(recording),
                    Err(failure) if decision.required => return Err(SessionRefusal::NotRecorded(failure)),
                    Err(_) => None,
                }
            }
        };
        Ok(Box::new(PermittedSession { kind, decision, tty, recording, permit }))
    }
}

fn named(user: &UserInfo) -> SessionUser {
    SessionUser { name: user.name.clone(), groups: user.groups.clone() }
}

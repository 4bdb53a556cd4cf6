//! Which clusters a user may reach. Each is asked through the gateway's own request path, with the user's token and from
//! the user's address: what the page shows is what kubectl would get.
//!
//! A cluster is shown only if it says that the user may. One that cannot be asked is shown only if it accepts tokens of the
//! page's provider; otherwise its name is not the user's business.
// threat: page-cluster-names

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt as _, StreamExt as _, stream};
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HOST, USER_AGENT};
use http::{HeaderValue, Request, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use portcullis_http::transport::Incoming;
use portcullis_kubernetes::reviews::is_allowed;
use portcullis_openid::provider::OpenIdClientSettings;
use portcullis_system::expiring_lru::ExpiringLru;
use portcullis_system::sync::lock;
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::{Instant, timeout_at};

use super::session::Session;
use super::{Page, PageInForce};
use crate::authn::settings::Authentication;
use crate::cluster::Cluster;
use crate::cluster::address::ClusterAddress;
use crate::cluster::settings::ClusterOrigin;
use crate::listener::{Connection, RequestHandler as _};
use crate::state::Snapshot;

const REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
/// May the user discover the API? By default every authenticated user may (system:discovery).
const REVIEW: &[u8] = br#"{"apiVersion":"authorization.k8s.io/v1","kind":"SelfSubjectAccessReview","spec":{"nonResourceAttributes":{"path":"/api","verb":"get"}}}"#;
/// Clusters that are asked at the same time for one user.
const MAX_AT_ONCE: usize = 32;
/// How long one cluster of a user may take, and all. Some clusters that never answer leave time for the others.
const REVIEW_TIMEOUT: Duration = Duration::from_millis(2500);
const ALL_REVIEWS_TIMEOUT: Duration = Duration::from_secs(5);
/// A cluster that takes this long for one user is asked after the others, for a while.
const SLOW: Duration = Duration::from_secs(1);
const SLOW_LIFETIME: Duration = Duration::from_mins(10);
const MAX_SLOW: usize = 4096;
/// How long the answers are used.
const LIFETIME: Duration = Duration::from_secs(10);
/// Sessions whose answers are kept.
const MAX_SESSIONS: usize = 1024;
const MAX_ANSWER_BYTES: usize = 64 << 10;
const AGENT: HeaderValue = HeaderValue::from_static(concat!("portcullis-page/", env!("CARGO_PKG_VERSION")));
const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// Whether a user may reach a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reach {
    /// The cluster says so.
    Allowed,
    /// It cannot be asked now.
    Unknown,
    /// It refuses, or is not for users of the page's provider.
    Hidden,
}

/// A cluster that a user is shown, in the order of the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct UserCluster {
    pub(super) name: String,
    /// Whether it has answered.
    pub(super) is_known: bool,
}

/// The answers for one session; the lock lets one request of a session ask, and others wait for it.
type SessionEntry = Arc<AsyncMutex<Option<Answers>>>;

/// Answers, until they are old or of an earlier configuration.
#[derive(Debug)]
struct Answers {
    at: Instant,
    generation: u64,
    clusters: Arc<[UserCluster]>,
}

/// The answers of the last seconds, and the clusters that were slow.
#[derive(Debug)]
pub(super) struct ReachCache {
    sessions: Mutex<ExpiringLru<[u8; 32], SessionEntry>>,
    slow: Mutex<ExpiringLru<String, ()>>,
}

impl Default for ReachCache {
    fn default() -> Self {
        Self {
            sessions: Mutex::new(ExpiringLru::new(MAX_SESSIONS)),
            slow: Mutex::new(ExpiringLru::new(MAX_SLOW)),
        }
    }
}

impl ReachCache {
    fn entry(&self, session: [u8; 32]) -> SessionEntry {
        let now = Instant::now();
        let mut entries = lock(&self.sessions);
        if let Some(entry) = entries.get(&session, now) {
            return Arc::clone(entry);
        }
        let entry = SessionEntry::default();
        // Longer than its answers, so that requests that come late share them.
        entries.put(session, Arc::clone(&entry), 1, now + 2 * LIFETIME + ALL_REVIEWS_TIMEOUT, now);
        entry
    }

    fn is_slow(&self, cluster: &str) -> bool {
        lock(&self.slow).get(&cluster.to_owned(), Instant::now()).is_some()
    }

    fn note_slow(&self, cluster: &str) {
        let now = Instant::now();
        lock(&self.slow).put(cluster.to_owned(), (), 1, now + SLOW_LIFETIME, now);
    }
}

/// The clusters of a user.
pub(super) async fn of_user(
    page: &Page,
    in_force: &PageInForce,
    session: &Session,
    peer: SocketAddr,
) -> Arc<[UserCluster]> {
    let entry = page.reach.entry(session.id());
    let mut answers = entry.lock().await;
    let snapshot = page.live().snapshot();
    let is_new =
        |answers: &&Answers| answers.at.elapsed() < LIFETIME && answers.generation == snapshot.generation;
    if let Some(answers) = answers.as_ref().filter(is_new) {
        return Arc::clone(&answers.clusters);
    }
    let clusters: Arc<[UserCluster]> = ask_all(page, in_force, &snapshot, session, peer).await.into();
    *answers = Some(Answers {
        at: Instant::now(),
        generation: snapshot.generation,
        clusters: Arc::clone(&clusters),
    });
    clusters
}

async fn ask_all(
    page: &Page,
    in_force: &PageInForce,
    snapshot: &Snapshot,
    session: &Session,
    peer: SocketAddr,
) -> Vec<UserCluster> {
    let deadline = Instant::now() + ALL_REVIEWS_TIMEOUT;
    let client = &in_force.settings.client;
    let api = &in_force.settings.kubeconfig.api_authority;
    let asked = snapshot
        .clusters()
        .iter()
        .filter(|cluster| may_see_tokens(&cluster.settings.origin, &cluster.settings.authentication, client));
    let asked =
        asked.filter_map(|cluster| Some((cluster, ClusterAddress::of(&cluster.settings.routes, api)?)));
    // The routes must lead there: another cluster may have the same name more exactly.
    let asked = asked.filter(|(cluster, address)| leads_to(address, snapshot, cluster));
    let mut asked: Vec<_> = asked.enumerate().collect();
    // threat: page-silent-clusters
    // Cached: a cluster may cease to be slow while they are compared, and an order that changes panics.
    asked.sort_by_cached_key(|(_, (cluster, _))| {
        (page.reach.is_slow(&cluster.name), cluster.settings.origin.is_of_tenant())
    });
    let asking: Vec<BoxFuture<'_, (usize, &str, Reach)>> = asked
        .into_iter()
        .map(|(index, (cluster, address))| {
            let asked = ask_until(page, client, session, peer, cluster, address, deadline);
            asked.map(move |reach| (index, &*cluster.name, reach)).boxed()
        })
        .collect();
    // Not in order: a cluster that does not answer would hold back those behind it.
    let mut answers: Vec<_> = stream::iter(asking).buffer_unordered(MAX_AT_ONCE).collect().await;
    answers.sort_by_key(|(index, ..)| *index);
    let shown = answers.into_iter().filter(|(_, _, reach)| *reach != Reach::Hidden);
    shown
        .map(|(_, name, reach)| UserCluster { name: name.to_owned(), is_known: reach == Reach::Allowed })
        .collect()
}

/// Whether the user may reach a cluster, as far as it is known at the deadline.
async fn ask_until(
    page: &Page,
    client: &OpenIdClientSettings,
    session: &Session,
    peer: SocketAddr,
    cluster: &Cluster,
    address: ClusterAddress,
    deadline: Instant,
) -> Reach {
    let begun = Instant::now();
    let asked = if begun < deadline {
        timeout_at(deadline.min(begun + REVIEW_TIMEOUT), ask(page, session, peer, &address)).await.ok()
    } else {
        None
    };
    if begun.elapsed() >= SLOW {
        page.reach.note_slow(&cluster.name);
    }
    match asked.unwrap_or(Reach::Unknown) {
        Reach::Unknown if !accepts_tokens(&cluster.settings.authentication, client) => Reach::Hidden,
        reach => reach,
    }
}

/// Whether a cluster accepts ID tokens of the page's provider for the page.
fn accepts_tokens(authentication: &Authentication, client: &OpenIdClientSettings) -> bool {
    authentication
        .jwt
        .iter()
        .any(|known| known.issuer.url == client.issuer && known.issuer.audiences.contains(&client.client_id))
}

/// Whether a cluster may be asked with the token of a user who has not chosen it. The webhook of a tenant's cluster would
/// receive the token, and the tenant could use it at other clusters.
// threat: page-token-to-tenant
fn may_see_tokens(
    origin: &ClusterOrigin,
    authentication: &Authentication,
    client: &OpenIdClientSettings,
) -> bool {
    match &authentication.webhook {
        Some(_) => !origin.is_of_tenant(),
        None => accepts_tokens(authentication, client),
    }
}

async fn ask(page: &Page, session: &Session, peer: SocketAddr, address: &ClusterAddress) -> Reach {
    let Some(request) = review(address, session) else { return Reach::Hidden };
    let connection = Connection::internal(peer, address.host().to_owned(), &page.parts.shutdown);
    let response = page.parts.gateway.handle(connection, request).await;
    let (status, body) = (response.status(), response.into_body());
    if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS {
        return Reach::Unknown;
    }
    if status != StatusCode::CREATED {
        return Reach::Hidden;
    }
    let Ok(body) = Limited::new(body, MAX_ANSWER_BYTES).collect().await else { return Reach::Unknown };
    match is_allowed(&body.to_bytes()) {
        Ok(true) => Reach::Allowed,
        Ok(false) => Reach::Hidden,
        Err(_) => Reach::Unknown,
    }
}

/// Whether requests to the address go to the cluster.
fn leads_to(address: &ClusterAddress, snapshot: &Snapshot, cluster: &Arc<Cluster>) -> bool {
    let path = format!("{}{REVIEWS}", address.prefix);
    let found = snapshot.router.route(Some(address.host()), Some(&address.authority), &path);
    found.is_ok_and(|found| Arc::ptr_eq(found.cluster, cluster))
}

/// The request that asks for the identity of a session.
fn review(address: &ClusterAddress, session: &Session) -> Option<Request<Incoming>> {
    let mut token = HeaderValue::try_from(format!("Bearer {}", session.token.expose())).ok()?;
    token.set_sensitive(true);
    let request = Request::post(format!("{}{REVIEWS}", address.prefix))
        .header(HOST, &address.authority)
        .header(AUTHORIZATION, token)
        .header(ACCEPT, JSON)
        .header(CONTENT_TYPE, JSON)
        .header(CONTENT_LENGTH, REVIEW.len())
        .header(USER_AGENT, AGENT);
    request.body(Incoming::Whole(Some(Bytes::from_static(REVIEW)))).ok()
}

#[cfg(test)]
mod tests {
    use portcullis_http::client_tls::{ClientTls, TrustedRoots};
    use portcullis_openid::jwt::keys::JwsAlgorithm;
    use portcullis_openid::provider::ScopeChoice;

    use super::*;
    use crate::authn::oidc::settings::{AttributeMapping, IssuerSettings, JwtAuthenticator};
    use crate::authn::webhook::settings::{TokenReviewVersion, WebhookSettings};

    #[test]
    fn no_webhook_of_a_tenant_gets_the_tokens_of_users_who_have_not_chosen_it() {
        let client = OpenIdClientSettings {
            issuer: "https://issuer.test".to_owned(),
            client_id: "page".to_owned(),
            secret: None,
            roots: TrustedRoots::none(),
            scopes: ScopeChoice::Offline,
            extra: Vec::new(),
            user: None,
        };
        let jwt = |url: &str, audience: &str| JwtAuthenticator {
            issuer: IssuerSettings {
                url: url.to_owned(),
                discovery_url: None,
                certificate_authority: None,
                audiences: vec!["kubernetes".to_owned(), audience.to_owned()],
            },
            algorithms: JwsAlgorithm::ALL.to_vec(),
            claim_rules: Vec::new(),
            username: AttributeMapping::Claim { name: "sub".to_owned(), prefix: String::new() },
            groups: None,
            uid: None,
            extra: Vec::new(),
            user_rules: Vec::new(),
        };
        let webhook = || WebhookSettings {
            url: "https://webhook.test".to_owned(),
            tls: ClientTls::trusting(TrustedRoots::none()),
            bearer_token: None,
            version: TokenReviewVersion::V1,
            cache_ttl: Duration::ZERO,
        };
        let (management, namespace) = (Arc::from([]), "n".to_owned());
        let (name, uid) = ("s".to_owned(), "u".to_owned());
        let tenant = ClusterOrigin::Secret { management, namespace, name, uid };
        let good = || jwt("https://issuer.test", "page");
        let cases: [(Vec<JwtAuthenticator>, bool, bool, bool); 6] = [
            // Issuers, whether there is a webhook; whether an operator's and a tenant's cluster is asked.
            (vec![good()], false, true, true),
            (vec![jwt("https://other.test", "page"), good()], false, true, true),
            (vec![jwt("https://other.test", "page")], false, false, false),
            (vec![jwt("https://issuer.test", "other")], false, false, false),
            (vec![good()], true, true, false),
            (Vec::new(), true, true, false),
        ];
        for (index, (issuers, has_webhook, of_operator, of_tenant)) in cases.into_iter().enumerate() {
            let authentication = Authentication {
                jwt: issuers.into_iter().map(Arc::new).collect(),
                webhook: has_webhook.then(|| Arc::new(webhook())),
                ..Authentication::default()
            };
            let is_asked = |origin| may_see_tokens(origin, &authentication, &client);
            assert_eq!(is_asked(&ClusterOrigin::Configuration), of_operator, "{index}");
            assert_eq!(is_asked(&tenant), of_tenant, "{index}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn sessions_that_are_kept_are_bounded() {
        let cache = ReachCache::default();
        for index in 0..=MAX_SESSIONS {
            let mut session = [0; 32];
            session[..8].copy_from_slice(&u64::try_from(index).unwrap().to_be_bytes());
            cache.entry(session);
        }
        assert_eq!(lock(&cache.sessions).len(), MAX_SESSIONS);
    }
}

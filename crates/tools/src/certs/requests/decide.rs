//! `portcullis certs approve` and `deny`: print the requests, ask for confirmation, and write the decision. A decision
//! never applies to a request that changed after it was printed.

use std::io::{BufRead as _, IsTerminal as _, Write as _};
use std::process::ExitCode;

use clap::Args;
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::PostParams;
use portcullis_pki::issuance::profile::SYSTEM_MASTERS;
use portcullis_pki::issuance::request::{CertificateRequest, RequestError};
use portcullis_system::clock::Clock;
use serde::Serialize;

use super::super::super::cluster::{ClusterClient, ClusterFlags};
use super::super::super::terminal::plain;
use super::super::error::CommandError;
use super::super::table;
use super::{RequestName, RequestRow, RequestedContent, has, read, with_cluster};
use crate::output::{Output, print};

/// The parts that a warning names; a request can have thousands.
const MAX_NOT_SHOWN: usize = 5;

/// Attempts to write a decision when other clients update the request concurrently.
// kubectl: pkg/cmd/certificates/certificates.go, modifyCertificateCondition
const MAX_UPDATE_ATTEMPTS: usize = 10;

/// The flags of `portcullis certs approve`.
#[derive(Debug, Clone, Args)]
pub struct ApproveFlags {
    #[command(flatten)]
    decision: DecisionFlags,
}

/// The flags of `portcullis certs deny`.
#[derive(Debug, Clone, Args)]
pub struct DenyFlags {
    #[command(flatten)]
    decision: DecisionFlags,
    /// The reason in the condition, one word in CamelCase.
    #[arg(long, value_name = "REASON", default_value = "PortcullisDeny")]
    reason: String,
    /// The message in the condition, for the requestor.
    #[arg(long, value_name = "TEXT", default_value = "This CSR was denied by portcullis certs deny.")]
    message: String,
}

#[derive(Debug, Clone, Args)]
struct DecisionFlags {
    /// The names of the requests.
    #[arg(value_name = "NAME", required = true)]
    names: Vec<String>,
    /// Do not ask for confirmation.
    #[arg(short, long)]
    yes: bool,
    #[command(flatten)]
    cluster: ClusterFlags,
    /// The output format.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = Output::Text, help_heading = "Output")]
    output: Output,
}

const APPROVED: &str = "Approved";

/// The condition to add to a request.
struct ApprovalDecision<'a> {
    /// The type of the condition.
    kind: &'static str,
    /// For the question and for the result: `approve`, `approved`.
    verbs: (&'static str, &'static str),
    reason: &'a str,
    message: &'a str,
}

/// The result for one request.
#[derive(Debug, Serialize)]
struct DecisionReport {
    name: String,
    decision: &'static str,
    request: RequestRow,
}

pub(in crate::certs) fn approve(flags: &ApproveFlags) -> Result<ExitCode, CommandError> {
    let decision = ApprovalDecision {
        kind: APPROVED,
        verbs: ("approve", "approved"),
        reason: "PortcullisApprove",
        message: "This CSR was approved by portcullis certs approve.",
    };
    decision.run(&flags.decision)
}

pub(in crate::certs) fn deny(flags: &DenyFlags) -> Result<ExitCode, CommandError> {
    let decision = ApprovalDecision {
        kind: "Denied",
        verbs: ("deny", "denied"),
        reason: &flags.reason,
        message: &flags.message,
    };
    decision.run(&flags.decision)
}

/// Fails for a request that is not one bare PEM block, which another signer may parse differently, or that is too large
/// to check.
fn refuse_ambiguous(requests: &[CertificateSigningRequest]) -> Result<(), CommandError> {
    for request in requests {
        let read = CertificateRequest::from_pem(&request.spec.request.0);
        if let Err(error @ (RequestError::NotBare | RequestError::TooLarge)) = read {
            return Err(CommandError::about(format!("{} is not approved", super::name(request)), error));
        }
    }
    Ok(())
}

impl ApprovalDecision<'_> {
    fn run(&self, flags: &DecisionFlags) -> Result<ExitCode, CommandError> {
        let (verb, done) = self.verbs;
        if !flags.yes && !std::io::stdin().is_terminal() {
            return Err(CommandError::Usage(format!(
                "no terminal for the confirmation: review the requests with certs list, then {verb} them with --yes"
            )));
        }
        let names: Vec<_> =
            flags.names.iter().map(|name| RequestName::parse(name)).collect::<Result<_, _>>()?;
        with_cluster(&flags.cluster, async |cluster, api| {
            let now = Clock::system().now();
            // Reads all requests before the first decision, so that a wrong name fails early.
            let mut requests = Vec::new();
            for name in &names {
                requests.push(read(cluster, &api, name).await?);
            }
            if self.kind == APPROVED {
                refuse_ambiguous(&requests)?;
            }
            let rows: Vec<RequestRow> = requests.iter().map(|request| RequestRow::of(request, now)).collect();
            let shown = shown(&rows);
            if flags.output == Output::Text {
                print(&shown);
            }
            if !flags.yes
                && !self.confirmed(&flags.names, (flags.output != Output::Text).then_some(&shown))?
            {
                return Err(CommandError::Failed("nothing was changed".to_owned()));
            }
            let mut decided = Vec::new();
            for ((request, name), row) in requests.into_iter().zip(&names).zip(rows) {
                self.write(cluster, &api, name, request).await?;
                if flags.output == Output::Text {
                    print(&format!("certificatesigningrequest.certificates.k8s.io/{} {done}\n", row.name));
                }
                decided.push(DecisionReport { name: row.name.clone(), decision: self.kind, request: row });
            }
            Ok(flags.output.rendered(&decided).map_or(ExitCode::SUCCESS, |text| print(&text)))
        })
    }

    /// Asks for confirmation at the terminal.
    fn confirmed(&self, names: &[String], shown: Option<&String>) -> Result<bool, CommandError> {
        let (verb, _) = self.verbs;
        let mut out = std::io::stderr();
        let names: Vec<_> = names.iter().map(|name| plain(name)).collect();
        let question = format!("{}{verb} {}? [y/N] ", shown.map_or("", String::as_str), names.join(", "));
        let mut answer = String::new();
        out.write_all(question.as_bytes())
            .and_then(|()| out.flush())
            .and_then(|()| std::io::stdin().lock().read_line(&mut answer))
            .map_err(|error| CommandError::about("the terminal", error))?;
        Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
    }

    /// Adds the condition unless it is present. Retries conflicting updates while the displayed parts are unchanged.
    async fn write(
        &self,
        cluster: &ClusterClient,
        api: &Api<CertificateSigningRequest>,
        name: &RequestName,
        mut request: CertificateSigningRequest,
    ) -> Result<(), CommandError> {
        let doing = format!("{} certificate signing request {}", self.verbs.0, name.name);
        let shown = decided_on(&request);
        for _ in 0..MAX_UPDATE_ATTEMPTS {
            if has(&request, self.kind) {
                return Ok(());
            }
            let conditions = &mut request.status.get_or_insert_default().conditions;
            conditions.get_or_insert_default().push(self.condition());
            let parameters = PostParams::default();
            let written = cluster.ask(&doing, async {
                match api.replace_subresource("approval", &name.segment, &parameters, &request).await {
                    Err(kube::Error::Api(status)) if status.code == 409 => Ok(None),
                    written => written.map(Some),
                }
            });
            if let Some(written) = written.await.map_err(CommandError::Failed)? {
                return name.check(written).map(drop);
            }
            request = read(cluster, api, name).await?;
            if decided_on(&request) != shown {
                let problem = "the request was changed or recreated meanwhile; review it again";
                return Err(CommandError::about(&name.name, problem));
            }
        }
        Err(CommandError::about(&name.name, "other clients keep updating the request; try again"))
    }

    fn condition(&self) -> CertificateSigningRequestCondition {
        let now = i64::try_from(Clock::system().now().as_secs()).ok();
        let now = now.and_then(|seconds| Timestamp::from_second(seconds).ok()).map(Time);
        CertificateSigningRequestCondition {
            type_: self.kind.to_owned(),
            status: "True".to_owned(),
            reason: Some(self.reason.to_owned()),
            message: Some(self.message.to_owned()),
            last_update_time: now,
            last_transition_time: None,
        }
    }
}

/// The parts that must not change between display and decision: the request and its annotations, which some signers
/// interpret.
fn decided_on(request: &CertificateSigningRequest) -> impl PartialEq + use<> {
    let annotations = request.metadata.annotations.clone().unwrap_or_default();
    (request.metadata.uid.clone(), request.spec.clone(), annotations)
}

/// The text form of the requests: contents, requestor and warnings.
fn shown(rows: &[RequestRow]) -> String {
    let mut facts = Vec::new();
    for row in rows {
        facts.push(("request", plain(&row.name).into_owned()));
        match &row.asks {
            RequestedContent::Request { subject, alt_names, key } => {
                facts.push(("subject", subject.clone()));
                facts.extend(alt_names.iter().map(|name| ("name", name.clone())));
                facts.push(("key", key.clone()));
            }
            // A warning has the cause.
            RequestedContent::Unreadable(_) => {}
        }
        facts.extend(row.also_asks_for.iter().map(|also| ("also", also.clone())));
        facts.push(("usages", row.usages.join(", ")));
        facts.push(("signer", row.signer_name.clone()));
        facts.push(("requestor", plain(&row.requestor).into_owned()));
        facts.extend(row.requestor_uid.iter().map(|uid| ("uid", plain(uid).into_owned())));
        facts.extend(row.requestor_groups.iter().map(|group| ("group", plain(group).into_owned())));
        for (key, values) in &row.requestor_extra {
            facts.extend(values.iter().map(|value| ("extra", format!("{}={}", plain(key), plain(value)))));
        }
        for (key, value) in &row.annotations {
            facts.push(("annotation", format!("{}={}", plain(key), plain(value))));
        }
        facts.push(("duration", row.requested_duration.clone()));
        facts.push(("condition", row.condition.clone()));
        facts.push(("", String::new()));
    }
    // Last, directly above the prompt: no other text of a requester can scroll them away.
    for row in rows {
        let name = plain(&row.name);
        facts.extend(warnings(row).into_iter().map(|warning| ("WARNING", format!("{name}: {warning}"))));
    }
    table::facts(facts)
}

/// The warnings about a request, the gravest last.
fn warnings(row: &RequestRow) -> Vec<String> {
    let mut warnings = Vec::new();
    let subject = match &row.asks {
        RequestedContent::Request { subject, .. } => Some(subject),
        RequestedContent::Unreadable(problem) => {
            warnings.push(format!("malformed request: {problem}"));
            None
        }
    };
    if !row.not_shown.is_empty() {
        let mut parts: Vec<&str> = row.not_shown.iter().take(MAX_NOT_SHOWN).map(String::as_str).collect();
        let more = format!("{} more", row.not_shown.len() - parts.len());
        if row.not_shown.len() > MAX_NOT_SHOWN {
            parts.push(&more);
        }
        warnings.push(format!("not fully shown, another signer may read more: {}", parts.join(", ")));
    }
    if row.asks_for_authority {
        let text = "requests a CA certificate: if a signer grants it, its holder can sign for any name";
        warnings.push(text.to_owned());
    }
    if subject.into_iter().chain(&row.also_asks_for).any(|part| part.contains(SYSTEM_MASTERS)) {
        warnings.push(format!("the group {SYSTEM_MASTERS} has full access, regardless of RBAC"));
    }
    warnings
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;
    use portcullis_go::pem::encode_pem;
    use portcullis_pki::issuance::signer::{KeyKind, PemKey};
    use portcullis_pki::issuance::testing::{NOW, element, raw_request};

    use super::*;

    const SEQUENCE: u8 = 0x30;
    const SET: u8 = 0x31;
    const CN: &[u8] = &[0x55, 4, 3];
    const O: &[u8] = &[0x55, 4, 10];
    const SAN: u8 = 17;
    const EXTENSION_REQUEST: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 9, 14];
    /// Microsoft's variant; openssl reads it too.
    const CERT_EXTENSIONS: &[u8] = &[0x2b, 6, 1, 4, 1, 0x82, 0x37, 2, 1, 14];
    /// BasicConstraints with the CA bit.
    const CA: &[u8] = &[0x30, 3, 1, 1, 0xff];

    fn sequence(parts: &[&[u8]]) -> Vec<u8> {
        element(SEQUENCE, &parts.concat())
    }

    fn name(attributes: &[(&[u8], u8, &[u8])]) -> Vec<u8> {
        let rdn = |(kind, string, value): &(&[u8], u8, &[u8])| {
            element(SET, &sequence(&[&element(6, kind), &element(*string, value)]))
        };
        element(SEQUENCE, &attributes.iter().map(rdn).collect::<Vec<_>>().concat())
    }

    fn extension(kind: u8, value: &[u8]) -> Vec<u8> {
        sequence(&[&element(6, &[0x55, 0x1d, kind]), &element(4, value)])
    }

    /// An attribute with these extensions, one value for each.
    fn asks(kind: &[u8], extensions: &[Vec<u8>]) -> Vec<u8> {
        let values: Vec<_> = extensions.iter().map(|one| element(SEQUENCE, one)).collect();
        sequence(&[&element(6, kind), &element(SET, &values.concat())])
    }

    fn shown_of(subject: &[u8], attributes: &[u8]) -> String {
        let der = raw_request(subject, attributes, &PemKey::generate(KeyKind::EcdsaP256).unwrap());
        shown_of_pem(&encode_pem("CERTIFICATE REQUEST", &der))
    }

    fn shown_of_pem(pem: &str) -> String {
        let mut request = CertificateSigningRequest::default();
        request.spec.request = ByteString(pem.as_bytes().to_vec());
        shown(&[RequestRow::of(&request, NOW)])
    }

    /// A title, the subject and attributes, and the expected output.
    type Case = (&'static str, Vec<u8>, Vec<u8>, Vec<&'static str>);

    #[test]
    fn every_part_that_another_signer_may_read_is_shown_or_warned_of() {
        let alice = || name(&[(CN, 0x0c, b"alice")]);
        let wanted = |extension: Vec<u8>| asks(EXTENSION_REQUEST, &[extension]);
        let ca = || wanted(extension(19, CA));
        let names = |content: &[u8]| wanted(extension(SAN, &element(SEQUENCE, content)));
        let unread = "not fully shown";
        let authority = "requests a CA certificate";
        let cases: Vec<Case> = vec![
            ("an authority", alice(), ca(), vec!["basicConstraints: CA:TRUE", authority]),
            (
                "a NULL beside it",
                alice(),
                [ca(), vec![5, 0]].concat(),
                vec!["CA:TRUE", authority, unread, "0500"],
            ),
            ("a NULL before it", alice(), [vec![5, 0], ca()].concat(), vec!["CA:TRUE", authority, unread]),
            ("indefinite length", alice(), [ca(), vec![0x30, 0x80, 0, 0]].concat(), vec![unread]),
            (
                "as Microsoft asks",
                alice(),
                asks(CERT_EXTENSIONS, &[extension(19, CA)]),
                vec!["CA:TRUE", authority],
            ),
            (
                "in a second value",
                alice(),
                asks(EXTENSION_REQUEST, &[extension(SAN, &[0x30, 0]), extension(19, CA)]),
                vec!["CA:TRUE", authority],
            ),
            (
                "BER's truth that it is critical",
                alice(),
                wanted(sequence(&[&element(6, &[0x55, 0x1d, 19]), &[1, 1, 1], &element(4, CA)])),
                vec![unread, authority],
            ),
            ("BER's truth", alice(), wanted(extension(19, &[0x30, 3, 1, 1, 1])), vec![unread, authority]),
            (
                "more in an extension",
                alice(),
                wanted(sequence(&[&element(6, &[0x55, 0x1d, 15]), &element(4, &[3, 2, 5, 0xa0]), &[5, 0]])),
                vec!["digitalSignature, keyEncipherment", unread],
            ),
            (
                "a long value",
                alice(),
                wanted(extension(99, &[7; 65])),
                vec!["extension 2.5.29.99: 0707", "(65 octets)", unread],
            ),
            (
                "two names",
                name(&[(CN, 0x0c, b"root"), (CN, 0x0c, b"alice")]),
                vec![],
                vec!["CN=alice", "subject CN=root"],
            ),
            (
                "an empty last name",
                name(&[(CN, 0x0c, b"root"), (CN, 0x0c, b"")]),
                vec![],
                vec!["subject CN=root"],
            ),
            (
                "a group that Go does not read",
                name(&[(CN, 0x0c, b"alice"), (O, 0x1a, b"system:masters")]),
                vec![],
                vec!["subject O=#1a0e73797374656d3a6d617374657273", unread],
            ),
            (
                "a principal",
                alice(),
                names(&[0xa0, 3, 6, 1, 0x2a]),
                vec!["subjectAltName: otherName:a00306012a"],
            ),
            (
                "a DNS name of Microsoft's",
                alice(),
                asks(CERT_EXTENSIONS, &[extension(SAN, &[0x30, 3, 0x82, 1, b'a'])]),
                vec!["subjectAltName: DNS:a"],
            ),
        ];
        let mut wrong = Vec::new();
        for (case, subject, attributes, expected) in cases {
            let said = shown_of(&subject, &attributes);
            wrong.extend(
                expected
                    .iter()
                    .filter(|one| !said.contains(**one))
                    .map(|one| format!("{case}: no {one:?} in\n{said}")),
            );
            if !expected.contains(&unread) && said.contains(unread) {
                wrong.push(format!("{case}: {said}"));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    #[test]
    fn a_second_request_far_behind_the_first_is_refused() {
        let pem = |kind, value: &[u8]| {
            let key = PemKey::generate(KeyKind::EcdsaP256).unwrap();
            encode_pem("CERTIFICATE REQUEST", &raw_request(&name(&[(kind, 0x0c, value)]), &[], &key))
        };
        let text = [pem(CN, b"alice"), "\n".repeat(256 << 10), pem(O, SYSTEM_MASTERS.as_bytes())].concat();
        let said = shown_of_pem(&text);
        assert!(said.contains("may read more: the request"), "{said}");
        let mut request = CertificateSigningRequest::default();
        request.spec.request = ByteString(text.into_bytes());
        assert!(refuse_ambiguous(&[request]).is_err());
    }

    #[test]
    fn annotations_are_shown_and_decided_on() {
        let mut request = CertificateSigningRequest::default();
        let before = decided_on(&request);
        let annotations = [("example.com/a", "b\nc"), ("experimental.cert-manager.io/request-is-ca", "true")];
        let annotations = annotations.map(|(key, value)| (key.to_owned(), value.to_owned()));
        request.metadata.annotations = Some(annotations.into());
        assert!(decided_on(&request) != before);
        let row = RequestRow::of(&request, NOW);
        let said = shown(std::slice::from_ref(&row));
        for part in [r#"annotation  example.com/a="b\nc""#, "is-ca=true", "requests a CA certificate"] {
            assert!(said.contains(part), "{part}: {said}");
        }
        let json = serde_json::to_value(&row).unwrap();
        assert_eq!(json["annotations"]["example.com/a"], "b\nc");
    }

    #[test]
    fn displayed_names_are_not_repeated() {
        let names: &[u8] = &[0x82, 1, b'a', 0x87, 4, 192, 0, 2, 1, 0x81, 3, b'a', b'@', b'b'];
        let subject = name(&[(CN, 0x0c, b"alice"), (O, 0x13, b"dev"), (O, 0x16, b"ops")]);
        let attributes = asks(EXTENSION_REQUEST, &[extension(SAN, &element(SEQUENCE, names))]);
        let said = shown_of(&subject, &attributes);
        assert!(!said.contains("also") && !said.contains("WARNING"), "{said}");
        assert!(said.contains("O=dev + O=ops, CN=alice") && said.contains("IP:192.0.2.1"), "{said}");
    }

    #[test]
    fn a_malformed_request_is_shown_with_a_warning() {
        let key = PemKey::generate(KeyKind::EcdsaP256).unwrap();
        let subject = name(&[(O, 0x0c, b"system:masters"), (CN, 0x0c, b"root")]);
        let mut der = raw_request(&subject, &asks(EXTENSION_REQUEST, &[extension(19, CA)]), &key);
        // An invalid signature.
        *der.last_mut().unwrap() ^= 1;
        let said = shown_of_pem(&encode_pem("CERTIFICATE REQUEST", &der));
        for part in
            ["malformed request", "subject O=system:masters", "has full access", "subject CN=root", "CA:TRUE"]
        {
            assert!(said.contains(part), "{part}: {said}");
        }
        assert!(
            said.trim_end().ends_with("has full access, regardless of RBAC"),
            "the gravest warning is last: {said}"
        );
        for text in ["", &encode_pem("CERTIFICATE REQUEST", &[0x30, 0])] {
            assert!(shown_of_pem(text).contains("not fully shown"), "{text}");
        }
    }
}

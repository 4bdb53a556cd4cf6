//! Custom signers.

use std::time::Duration;

use super::{case, dns, emails, ips, nothing, run, uris};
use crate::issuance::issue::IssuanceRequest;
use crate::issuance::profile::{CertificateProfile, CustomRules};
use crate::issuance::signer::KeyKind;
use crate::issuance::subject::Subject;
use crate::issuance::testing::{NOW, YEAR, authority, request, strings, subject};
use crate::issuance::usage::CertificateUsage;

fn custom(rules: CustomRules) -> CertificateProfile {
    CertificateProfile::custom(&"example.com/team".parse().unwrap(), rules)
}

fn team() -> CustomRules {
    CustomRules {
        common_names: vec!["team-*".parse().unwrap(), "boss".parse().unwrap()],
        organizations: vec!["*".parse().unwrap()],
        dns_names: vec!["*.team.example".parse().unwrap()],
        ip_ranges: vec!["10.0.0.0/8".parse().unwrap()],
        emails: vec!["*@team.example".parse().unwrap()],
        uris: vec!["spiffe://team/*".parse().unwrap()],
        allowed_usages: [
            CertificateUsage::ClientAuth,
            CertificateUsage::DigitalSignature,
            CertificateUsage::CertSign,
        ]
        .into(),
        required_usages: [CertificateUsage::ClientAuth].into(),
        ..CustomRules::default()
    }
}

#[test]
fn custom_rules() {
    const USAGES: &[&str] = &["client auth", "digital signature"];
    const UNNAMED: Option<&str> = Some("a subject or a subjectAltName is required");
    const NO_PURPOSE: Option<&str> = Some("missing extended key usage: request one, such as client auth");
    let a = || subject("team-a", &[]);
    let odd = |change: fn(&mut Subject)| {
        let mut subject = a();
        change(&mut subject);
        subject
    };
    run(
        &custom(team()),
        vec![
            case("a prefix", a(), nothing(), USAGES, None),
            case("exactly", subject("boss", &["a", "b"]), nothing(), &["client auth"], None),
            case(
                "another name",
                subject("alice", &[]),
                nothing(),
                USAGES,
                Some("subject common name \"alice\" is not allowed"),
            ),
            case("no name at all", subject("", &[]), nothing(), USAGES, UNNAMED),
            case("no common name", subject("", &[]), uris(&["spiffe://team/a"]), USAGES, None),
            case(
                "a star does not match system:masters",
                subject("team-a", &["b", "system:masters"]),
                nothing(),
                USAGES,
                Some("subject organization \"system:masters\" is not allowed"),
            ),
            case("a suffix", a(), dns(&["x.team.example"]), USAGES, None),
            case(
                "another DNS name",
                a(),
                dns(&["x.team.example", "y.example"]),
                USAGES,
                Some("DNS subjectAltName \"y.example\" is not allowed"),
            ),
            case("an address", a(), ips(&["10.1.2.3"]), USAGES, None),
            case(
                "another address",
                a(),
                ips(&["10.1.2.3", "11.0.0.1"]),
                USAGES,
                Some("IP subjectAltName 11.0.0.1 is not allowed"),
            ),
            case("a mailbox", a(), emails(&["a@team.example"]), USAGES, None),
            case(
                "another mailbox",
                a(),
                emails(&["a@example"]),
                USAGES,
                Some("Email subjectAltName \"a@example\" is not allowed"),
            ),
            case("a URI", a(), uris(&["spiffe://team/a"]), USAGES, None),
            case(
                "another URI",
                a(),
                uris(&["spiffe://teams/a"]),
                USAGES,
                Some("URI subjectAltName \"spiffe://teams/a\" is not allowed"),
            ),
            case(
                "country",
                odd(|s| s.country = strings(&["DE"])),
                nothing(),
                USAGES,
                Some("subject country is not allowed"),
            ),
            case(
                "province",
                odd(|s| s.province = strings(&["x"])),
                nothing(),
                USAGES,
                Some("subject province is not allowed"),
            ),
            case(
                "locality",
                odd(|s| s.locality = strings(&["x"])),
                nothing(),
                USAGES,
                Some("subject locality is not allowed"),
            ),
            case(
                "street",
                odd(|s| s.street_address = strings(&["x"])),
                nothing(),
                USAGES,
                Some("subject street address is not allowed"),
            ),
            case(
                "postal code",
                odd(|s| s.postal_code = strings(&["x"])),
                nothing(),
                USAGES,
                Some("subject postal code is not allowed"),
            ),
            case(
                "unit",
                odd(|s| s.organizational_unit = strings(&["x"])),
                nothing(),
                USAGES,
                Some("subject organizational unit is not allowed"),
            ),
            case(
                "serial number",
                odd(|s| "1".clone_into(&mut s.serial_number)),
                nothing(),
                USAGES,
                Some("subject serial number is not allowed"),
            ),
            case(
                "an unlisted usage",
                a(),
                nothing(),
                &["client auth", "server auth"],
                Some("usage \"server auth\" is not allowed"),
            ),
            case(
                "an unknown usage",
                a(),
                nothing(),
                &["client auth", "x"],
                Some("usage \"x\" is not allowed"),
            ),
            case(
                "an authority's usage, though listed",
                a(),
                nothing(),
                &["client auth", "cert sign"],
                Some("usage \"cert sign\" is not allowed"),
            ),
            case(
                "a missing usage",
                a(),
                nothing(),
                &["digital signature"],
                Some("missing required usage: client auth"),
            ),
        ],
    );
    run(
        &custom(CustomRules { organizations: vec!["system:masters".parse().unwrap()], ..team() }),
        vec![case("masters, spelled out", subject("boss", &["system:masters"]), nothing(), USAGES, None)],
    );
    run(
        &custom(CustomRules { require_common_name: true, ..team() }),
        vec![
            case("the common name", a(), nothing(), USAGES, None),
            case(
                "no common name where one is needed",
                subject("", &["a"]),
                uris(&["spiffe://team/a"]),
                USAGES,
                Some("subject common name is required"),
            ),
        ],
    );
    let nothing_required = || CustomRules { required_usages: [].into(), ..team() };
    let any = [CertificateUsage::DigitalSignature, CertificateUsage::Any].into();
    run(
        &custom(nothing_required()),
        vec![
            case("a purpose", a(), nothing(), &["client auth"], None),
            case("no purpose is every purpose", a(), nothing(), &["digital signature"], NO_PURPOSE),
            case("no usage at all", a(), nothing(), &[], NO_PURPOSE),
        ],
    );
    run(
        &custom(CustomRules { allowed_usages: any, ..nothing_required() }),
        vec![
            case("every purpose is allowed", a(), nothing(), &["digital signature"], None),
            case("and may be named", a(), nothing(), &["any"], None),
        ],
    );
    for prefix in ["system:masters*", "*system:masters", "system:*"] {
        let rules = CustomRules { organizations: vec![prefix.parse().unwrap()], ..team() };
        let request = request(&subject("boss", &["system:masters"]), &nothing());
        assert!(custom(rules).check(&request, &strings(USAGES)).is_err(), "{prefix}");
    }
    run(
        &custom(CustomRules::default()),
        vec![
            case("an empty request", Subject::default(), nothing(), &[], UNNAMED),
            case(
                "a name",
                subject("a", &[]),
                nothing(),
                &[],
                Some("subject common name \"a\" is not allowed"),
            ),
            case(
                "a group",
                subject("", &["a"]),
                nothing(),
                &[],
                Some("subject organization \"a\" is not allowed"),
            ),
        ],
    );
}

#[test]
fn custom_durations() {
    let hours = |hours: u64| Some(Duration::from_hours(hours));
    let minutes = |minutes: u64| Some(Duration::from_mins(minutes));
    let authority = authority(KeyKind::EcdsaP256);
    let request = request(&subject("boss", &[]), &nothing());
    // Maximum, default, requested, and the lifetime after the backdate of five minutes.
    let cases = [
        ("flags", None, None, None, YEAR),
        ("maximum", hours(48), None, None, Duration::from_hours(48)),
        ("default", hours(48), hours(24), None, Duration::from_hours(24)),
        ("default above the maximum", hours(24), hours(48), None, Duration::from_hours(24)),
        ("requested", hours(48), hours(24), hours(36), Duration::from_hours(36)),
        ("requested above the maximum", hours(48), hours(24), hours(72), Duration::from_hours(48)),
        // The backdate does not shorten so short a lifetime.
        ("maximum below the minimum", minutes(7), None, Some(Duration::ZERO), Duration::from_mins(12)),
        ("longer than the flags", hours(17_520), None, None, 2 * YEAR),
    ];
    for (name, max_duration, default_duration, expiration, want) in cases {
        let profile = custom(CustomRules { max_duration, default_duration, ..team() });
        let usages = strings(&["client auth"]);
        let wanted =
            IssuanceRequest { request: &request, usages: &usages, expiration, signing_duration: YEAR };
        let issued = authority.issue(authority.prepare(&profile, &wanted, NOW).unwrap()).unwrap();
        assert_eq!(issued.not_after(), (NOW + want).saturating_sub(Duration::from_mins(5)), "{name}");
    }
}

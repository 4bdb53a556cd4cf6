//! The client certificates of the twin tests, usual and unusual, by the names that cases use.

use std::collections::BTreeMap;

use testkit::pki::{ANY_EKU, CN, Ca, Issued, KeyKind, O, SERVER_AUTH, UID, attribute, string};

/// The authorities of one run.
#[derive(Debug)]
pub(crate) struct Authorities {
    /// Issues the server certificates.
    pub(crate) server: Ca,
    /// `--client-ca-file` of the reference and of the gateway.
    pub(crate) client: Ca,
    /// `--requestheader-client-ca-file` of the reference and of the gateway.
    pub(crate) front: Ca,
    /// `--requestheader-client-ca-file` of the backend. Only the gateway has a certificate of this CA.
    pub(crate) inner: Ca,
    /// Not trusted by any server.
    pub(crate) untrusted: Ca,
}

impl Authorities {
    pub(crate) fn new() -> Self {
        Self {
            server: Ca::new("server-ca"),
            client: Ca::new("client-ca"),
            front: Ca::new("front-proxy-ca"),
            inner: Ca::new("inner-front-proxy-ca"),
            untrusted: Ca::new("stranger-ca"),
        }
    }

    /// All client certificates.
    pub(crate) fn people(&self, now: i64) -> BTreeMap<&'static str, Issued> {
        let leaf = || self.client.leaf();
        let mut people = BTreeMap::new();
        let mut add = |name: &'static str, issued: Issued| {
            assert!(people.insert(name, issued).is_none(), "two clients are called {name}");
        };
        // Users with permissions in the fixtures.
        add("admin", leaf().cn("admin").org("system:masters").issue());
        add("alice", leaf().cn("alice").org("devs").org("testers").issue());
        add("nobody", leaf().cn("nobody").issue());
        add("viewer", leaf().cn("viewer").org("viewers").issue());
        add("updater", leaf().cn("updater").issue());
        add("impersonator", leaf().cn("impersonator").org("impersonators").issue());
        add("legacy-impersonator", leaf().cn("legacy-impersonator").issue());
        add("prober", leaf().cn("prober").org("probers").issue());

        // Time, issuer, usage.
        add("expired", leaf().cn("late").expired(now).issue());
        add("not-yet-valid", leaf().cn("early").not_yet_valid(now).issue());
        add("stranger", self.untrusted.leaf().cn("alice").org("devs").issue());
        add("stranger-same-name", Ca::new("client-ca").leaf().cn("alice").org("devs").issue());
        add("self-signed", Ca::new("alice").as_leaf());
        add("server-only", leaf().cn("alice").eku(&[SERVER_AUTH]).issue());
        add("any-usage", leaf().cn("anyone").eku(&[ANY_EKU]).issue());
        add("no-usage", leaf().cn("unlimited").no_eku().issue());
        add("both-usages", leaf().cn("both").eku(&[SERVER_AUTH, testkit::pki::CLIENT_AUTH]).issue());
        add("no-key-usage", leaf().cn("no-key-usage").no_key_usage().issue());
        add("no-basic-constraints", leaf().cn("no-bc").no_basic_constraints().issue());
        add("corrupt-signature", leaf().cn("alice").corrupt_signature().issue());
        add("unknown-critical", leaf().cn("alice").unknown_critical().issue());
        add("v1", leaf().cn("old").org("v1").v1().issue());
        add("ca-as-leaf", self.client.as_leaf());

        // Chains.
        let middle = self.client.intermediate("middle");
        add("intermediate", middle.leaf().cn("carol").org("via-middle").issue());
        add("two-intermediates", middle.intermediate("lower").leaf().cn("dora").issue());
        let mut missing = middle.leaf().cn("carol").issue();
        missing.chain.truncate(1);
        add("missing-intermediate", missing);
        let old = self.client.build_intermediate("old-middle").expired(now).issue_ca();
        add("expired-intermediate", old.leaf().cn("carol").issue());
        let flat = self.client.build_intermediate("flat").path_len(0).issue_ca();
        add("path-length-kept", flat.leaf().cn("flat").issue());
        add("path-length-broken", flat.intermediate("too-deep").leaf().cn("deep").issue());
        let not_ca = self.client.build_intermediate("not-ca").basic_constraints(false, None).issue_ca();
        add("issued-by-a-leaf", not_ca.leaf().cn("eve").org("system:masters").issue());
        let mut reordered = middle.intermediate("lower2").leaf().cn("reordered").issue();
        reordered.chain.swap(1, 2);
        add("reordered-chain", reordered);
        let mut rooted = leaf().cn("rooted").issue();
        rooted.chain.push(self.client.cert.clone());
        add("root-sent-too", rooted);
        let mut padded = leaf().cn("padded").issue();
        padded.chain.push(self.untrusted.cert.clone());
        add("unrelated-certificate-sent-too", padded);

        // Names.
        add("many-groups", {
            let mut leaf = leaf().cn("many");
            for number in 0..60 {
                leaf = leaf.org(&format!("group-{number:02}"));
            }
            leaf.issue()
        });
        add("repeated-group", leaf().cn("rep").org("b").org("a").org("b").issue());
        add("groups-in-one-rdn", {
            let one = [b"x", b"a"].map(|value| attribute(O, string::UTF8, value));
            leaf().cn("one-rdn").rdn(&one).issue()
        });
        add("system-group", leaf().cn("sys").org("system:authenticated").org("last").issue());
        add("unauthenticated-group", leaf().cn("unauth").org("system:unauthenticated").issue());
        add("named-anonymous", leaf().cn("system:anonymous").issue());
        add("named-service-account", leaf().cn("system:serviceaccount:twin:default").issue());
        add("ou-is-no-group", leaf().cn("ou").ou("unit").org("org").issue());
        add("empty-group", leaf().cn("empty-group").org("").org("g").issue());
        add("group-with-comma", leaf().cn("comma").org("a,b").issue());
        add("no-cn", leaf().org("devs").issue());
        add("empty-cn", leaf().cn("").org("devs").issue());
        add("empty-subject", leaf().issue());
        add("two-cns", leaf().cn("first").cn("second").issue());
        add("second-cn-empty", leaf().cn("first").cn("").issue());
        add("quoted-cn", leaf().cn("a\"b\\c<d>&e").issue());
        add("unicode", leaf().cn("Zoë ☃").org("Größe").issue());
        add("long-cn", leaf().cn(&"n".repeat(1000)).issue());
        add("cn-leading-blank", leaf().cn(" alice").issue());
        add("cn-trailing-blank", leaf().cn("alice ").issue());
        add("cn-inner-blank", leaf().cn("alice  b").issue());
        add("group-trailing-blank", leaf().cn("mallory").org("system:masters ").issue());
        add("group-leading-blank", leaf().cn("mallory").org(" devs").issue());
        add("group-tab", leaf().cn("mallory").org("\tdevs").issue());
        add("cn-newline", leaf().cn("alice\nX-Remote-Group: system:masters").issue());
        add("cn-carriage-return", leaf().cn("alice\r\nX-Remote-Group: system:masters").issue());
        add("cn-nul", leaf().cn("alice\0bob").issue());
        add("cn-delete", leaf().cn("alice\u{7f}").issue());

        // String types.
        add("cn-printable", leaf().attr(CN, string::PRINTABLE, b"printable").issue());
        add("cn-printable-bad", leaf().attr(CN, string::PRINTABLE, b"under_score@x").issue());
        add("cn-ia5", leaf().attr(CN, string::IA5, b"ia5@example.com").issue());
        add("cn-ia5-bad", leaf().attr(CN, string::IA5, b"caf\xe9").issue());
        add("cn-t61", leaf().attr(CN, string::T61, b"teletex").issue());
        add("cn-t61-latin", leaf().attr(CN, string::T61, b"caf\xe9").issue());
        add("cn-bmp", leaf().attr(CN, string::BMP, b"\0b\0m\0p").issue());
        add("cn-bmp-odd", leaf().attr(CN, string::BMP, b"\0b\0").issue());
        add("cn-numeric", leaf().attr(CN, string::NUMERIC, b"12 34").issue());
        add("cn-visible", leaf().attr(CN, string::VISIBLE, b"visible").issue());
        add("cn-universal", leaf().attr(CN, string::UNIVERSAL, b"\0\0\0u").issue());
        add("cn-utf8-bad", leaf().attr(CN, string::UTF8, b"caf\xe9").issue());
        add("cn-integer", leaf().attr(CN, 0x02, b"\x05").issue());
        add("group-t61", leaf().cn("t").attr(O, string::T61, b"tele").issue());
        add("group-bmp", leaf().cn("b").attr(O, string::BMP, b"\0g\x20\xac").issue());
        add("group-integer", leaf().cn("i").attr(O, 0x02, b"\x05").org("g").issue());

        // The user's uid.
        add("uid", leaf().cn("ursula").uid("u-1").org("devs").issue());
        add("uid-twice", leaf().cn("ursula").uid("u-1").uid("u-2").issue());
        add("uid-empty", leaf().cn("ursula").uid("").issue());
        add("uid-not-a-string", leaf().cn("ursula").attr(UID, 0x02, b"\x05").issue());
        add("uid-printable", leaf().cn("ursula").attr(UID, string::PRINTABLE, b"u-3").issue());
        add("uid-outer-blank", leaf().cn("ursula").uid(" u-4").issue());

        // Keys.
        for (name, kind) in [
            ("rsa", KeyKind::Rsa2048),
            ("p256", KeyKind::P256),
            ("p384", KeyKind::P384),
            ("p521", KeyKind::P521),
            ("ed25519", KeyKind::Ed25519),
        ] {
            add(name, leaf().cn(name).key(kind).issue());
        }

        // Front proxies.
        add("front-proxy", self.front.leaf().cn("front-proxy").issue());
        add("front-proxy-not-allowed", self.front.leaf().cn("someone").issue());
        add("front-proxy-expired", self.front.leaf().cn("front-proxy").expired(now).issue());
        add("front-proxy-server-only", self.front.leaf().cn("front-proxy").eku(&[SERVER_AUTH]).issue());
        add("front-proxy-of-client-ca", leaf().cn("front-proxy").issue());
        add("front-proxy-second-cn", self.front.leaf().cn("someone").cn("front-proxy").issue());
        add("front-proxy-no-cn", self.front.leaf().org("front-proxy").issue());
        people
    }
}

/// `--token-auth-file`: usual rows, and unusual ones that Go's CSV reader and the API server accept.
pub(crate) const TOKENS: &str = concat!(
    "tok-alice,alice,uid-alice,\"devs,testers\"\r\n",
    "tok-admin,admin,,system:masters\n",
    "\n",
    "tok-plain,plain,uid-plain\n",
    "tok-authorized,webhooks,uid-webhooks,\"authorized,dev<s>\"\n",
    "tok-nowebhook,nowebhook,,\"authorized,nowebhook\"\n",
    "tok-no-uid,nouid,\n",
    "tok-one-group,one,u,solo\n",
    "tok-empty-group,emptygroup,u,\n",
    "tok-comma-tail,commatail,u,\"a,,b,\"\n",
    "tok-blanks, blank user , blank uid ,\" g1, g2 \"\n",
    "tok-no-name,,uid-no-name,ghosts\n",
    "tok-more,more,u,g,extra,columns\n",
    "tok-twice,first,u1,g1\n",
    "tok-twice,second,u2,g2\n",
    "\"tok,quoted\",quoted,u\n",
    "\"tok\"\"inner\",innerquote,u\n",
    ",empty token,u\n",
    "\"tok\nline\",newline,u\n",
    "tok-masters-blank,mallory,u,\"system:masters \"\n",
    "tok-unicode,Zoë,ü-1,\"größe,☃\"\n",
    "tok-anonymous,system:anonymous,u\n",
    "tok-authenticated,auth,u,\"system:authenticated,x\"\n",
    "tok-unauthenticated,unauth,u,system:unauthenticated\n",
    "tok-control,\"ctl\u{1}name\",u\n",
    "#tok-hash,hash,u\n",
    " tok-blank,leading,u\n",
    "tok-duplicate-groups,dup,u,\"a,b,a\"\n",
);

//! Requests of scripts in a browser, by `--cors-allowed-origins`.

use crate::case::{Case, case};

const GROUP: &str = "cors";
const MAP: &str = "/api/v1/namespaces/twin-fixed/configmaps/alpha";
const ALLOWED: &str = "https://app.example.com";

pub(crate) fn cases() -> Vec<Case> {
    let from = |name: &str, method: &str, target: &str, origin: &str| {
        case(GROUP, name, method, target).by_flags().header("Origin", origin)
    };
    let get = |name: &str, origin: &str| from(name, "GET", MAP, origin).cert("alice").answers(200);
    let preflight = |name: &str, origin: &str| {
        from(name, "OPTIONS", MAP, origin).header("Access-Control-Request-Method", "DELETE")
    };
    vec![
        get("a read", ALLOWED),
        get("a read with a port", "https://app.example.com:8443"),
        get("a read of the second pattern", "http://localhost:3000"),
        get("a read of another origin", "https://other.example.com"),
        get("a read of a longer host", "https://app.example.com.evil.test"),
        get("a read of no origin", "null"),
        get("a read of an empty origin", ""),
        get("a read of bytes that are not UTF-8", "").header_bytes("Origin", b"https://app.example.com:\xff"),
        get("a read of two origins", ALLOWED).header("Origin", "https://other.example.com"),
        get("a read of two origins, the first not allowed", "https://other.example.com")
            .header("Origin", ALLOWED),
        // A preflight has no credential, and is answered before anybody looks for one.
        preflight("a preflight", ALLOWED).answers(204),
        preflight("a preflight with a bad token", ALLOWED)
            .header("Authorization", "Bearer none")
            .answers(204),
        preflight("a preflight of a user", ALLOWED).cert("alice").answers(204),
        preflight("a preflight of another origin", "https://other.example.com").answers(403),
        preflight("a preflight of another origin by a user", "https://other.example.com")
            .cert("alice")
            .answers(403),
        from("OPTIONS of livez", "OPTIONS", "/livez", ALLOWED).answers(204),
        from("OPTIONS of no resource", "OPTIONS", "/nowhere", ALLOWED).answers(204),
        // Errors.
        from("a bad token", "GET", MAP, ALLOWED).header("Authorization", "Bearer none").answers(401),
        from("anonymous", "GET", MAP, ALLOWED).answers(403),
        from("forbidden", "GET", "/api/v1/nodes", ALLOWED).cert("alice").answers(403),
        from("absent", "GET", "/api/v1/namespaces/twin-fixed/configmaps/none", ALLOWED)
            .cert("alice")
            .answers(404),
        from("impersonation that is forbidden", "GET", MAP, ALLOWED)
            .cert("alice")
            .header("Impersonate-User", "bob")
            .answers(403),
        // Refused before the origin is looked at.
        from("a malformed timeout", "GET", &format!("{MAP}?timeout=foo"), ALLOWED).cert("alice").answers(400),
        from("a watch prefix that is too short", "GET", "/api/v1/watch", ALLOWED).cert("alice").answers(500),
        from("a preflight with a malformed timeout", "OPTIONS", &format!("{MAP}?timeout=foo"), ALLOWED)
            .answers(400),
        from("health", "GET", "/livez", ALLOWED).cert("alice").answers(200),
    ]
}

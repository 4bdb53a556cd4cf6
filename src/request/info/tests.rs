use portcullis_go::url::decode_path;
use portcullis_kubernetes::status::Status;

use super::*;

fn parse(method: &str, target: &str) -> Result<RequestInfo, RequestInfoError> {
    let method = Method::from_bytes(method.as_bytes()).expect("method");
    let (path, query) = target.split_once('?').map_or((target, None), |(path, query)| (path, Some(query)));
    RequestInfo::parse(&method, &decode_path(path).expect("path"), query)
}

/// Verb, group, version, namespace, resource, subresource, name, parts.
type Row = (&'static str, &'static str, [&'static str; 7], &'static str);

#[test]
fn resources_are_read_as_kube_apiserver_reads_them() {
    // Most rows are from kube-apiserver's requestinfo_test.go.
    const CASES: &[(&str, Row)] = &[
        ("GET", ("/api/v1/namespaces", "list", ["", "v1", "", "namespaces", "", "", "namespaces"], "api")),
        (
            "GET",
            ("/api/v1/namespaces/o", "get", ["", "v1", "o", "namespaces", "", "o", "namespaces/o"], "api"),
        ),
        ("GET", ("/api/v1/namespaces/o/pods", "list", ["", "v1", "o", "pods", "", "", "pods"], "api")),
        ("GET", ("/api/v1/namespaces/o/pods/f", "get", ["", "v1", "o", "pods", "", "f", "pods/f"], "api")),
        ("HEAD", ("/api/v1/namespaces/o/pods/f", "get", ["", "v1", "o", "pods", "", "f", "pods/f"], "api")),
        ("GET", ("/api/v1/pods", "list", ["", "v1", "", "pods", "", "", "pods"], "api")),
        ("HEAD", ("/api/v1/pods", "list", ["", "v1", "", "pods", "", "", "pods"], "api")),
        (
            "GET",
            ("/api/v1/proxy/namespaces/o/pods/f", "proxy", ["", "v1", "o", "pods", "", "f", "pods/f"], "api"),
        ),
        (
            "POST",
            (
                "/api/v1/proxy/namespaces/o/pods/f/a/b",
                "proxy",
                ["", "v1", "o", "pods", "", "f", "pods/f/a/b"],
                "api",
            ),
        ),
        ("GET", ("/api/v1/watch/pods", "watch", ["", "v1", "", "pods", "", "", "pods"], "api")),
        ("DELETE", ("/api/v1/watch/pods", "watch", ["", "v1", "", "pods", "", "", "pods"], "api")),
        (
            "GET",
            ("/api/v1/watch/namespaces/o/pods/f", "watch", ["", "v1", "o", "pods", "", "f", "pods/f"], "api"),
        ),
        ("GET", ("/api/v1/pods?watch=true", "watch", ["", "v1", "", "pods", "", "", "pods"], "api")),
        ("GET", ("/api/v1/pods?watch=false", "list", ["", "v1", "", "pods", "", "", "pods"], "api")),
        ("GET", ("/api/v1/pods?watch=1", "watch", ["", "v1", "", "pods", "", "", "pods"], "api")),
        ("GET", ("/api/v1/pods?watch=0", "list", ["", "v1", "", "pods", "", "", "pods"], "api")),
        ("GET", ("/api/v1/pods?watch", "watch", ["", "v1", "", "pods", "", "", "pods"], "api")),
        (
            "GET",
            ("/api/v1/pods?watch=FALSE&watch=true", "list", ["", "v1", "", "pods", "", "", "pods"], "api"),
        ),
        ("GET", ("/api/v1/pods?watch=fal%C5%BFe", "list", ["", "v1", "", "pods", "", "", "pods"], "api")),
        ("GET", ("/api/v1/pods?watch=;&watch=0", "list", ["", "v1", "", "pods", "", "", "pods"], "api")),
        ("GET", ("/api/v1/pods?limit=x&watch=1", "watch", ["", "v1", "", "pods", "", "", "pods"], "api")),
        ("GET", ("/api/v1/pods?limit=x&watch=False", "list", ["", "v1", "", "pods", "", "", "pods"], "api")),
        (
            "GET",
            ("/api/v1/namespaces/o/pods/f?watch=1", "get", ["", "v1", "o", "pods", "", "f", "pods/f"], "api"),
        ),
        (
            "GET",
            (
                "/api/v1/namespaces/o/pods/f/status",
                "get",
                ["", "v1", "o", "pods", "status", "f", "pods/f/status"],
                "api",
            ),
        ),
        (
            "GET",
            (
                "/api/v1/namespaces/o/pods/f/proxy/s",
                "get",
                ["", "v1", "o", "pods", "proxy", "f", "pods/f/proxy/s"],
                "api",
            ),
        ),
        (
            "PUT",
            (
                "/api/v1/namespaces/o/finalize",
                "update",
                ["", "v1", "o", "namespaces", "finalize", "o", "namespaces/o/finalize"],
                "api",
            ),
        ),
        (
            "PUT",
            (
                "/api/v1/namespaces/o/status",
                "update",
                ["", "v1", "o", "namespaces", "status", "o", "namespaces/o/status"],
                "api",
            ),
        ),
        (
            "PATCH",
            ("/api/v1/namespaces/o/pods/f", "patch", ["", "v1", "o", "pods", "", "f", "pods/f"], "api"),
        ),
        (
            "DELETE",
            ("/api/v1/namespaces/o/pods/f", "delete", ["", "v1", "o", "pods", "", "f", "pods/f"], "api"),
        ),
        ("POST", ("/api/v1/namespaces/o/pods", "create", ["", "v1", "o", "pods", "", "", "pods"], "api")),
        ("DELETE", ("/api/v1/nodes", "deletecollection", ["", "v1", "", "nodes", "", "", "nodes"], "api")),
        (
            "DELETE",
            (
                "/apis/ext/v1/namespaces/o/pods",
                "deletecollection",
                ["ext", "v1", "o", "pods", "", "", "pods"],
                "apis",
            ),
        ),
        (
            "POST",
            (
                "/apis/ext/v1b3/namespaces/o/pods",
                "create",
                ["ext", "v1b3", "o", "pods", "", "", "pods"],
                "apis",
            ),
        ),
        ("OPTIONS", ("/api/v1/pods", "", ["", "v1", "", "pods", "", "", "pods"], "api")),
        ("WATCH", ("/api/v1/pods", "", ["", "v1", "", "pods", "", "", "pods"], "api")),
        // Inner empty segments count, those at the ends do not.
        ("GET", ("/api/v1//pods", "get", ["", "v1", "", "", "", "pods", "/pods"], "api")),
        ("GET", ("//api/v1/pods//", "list", ["", "v1", "", "pods", "", "", "pods"], "api")),
        ("GET", ("/api/v1/namespaces//pods", "list", ["", "v1", "", "pods", "", "", "pods"], "api")),
        ("GET", ("/api/v1/pods//log", "list", ["", "v1", "", "pods", "log", "", "pods//log"], "api")),
        ("GET", ("/%61pi/v1/pods%2Ff", "get", ["", "v1", "", "pods", "", "f", "pods/f"], "api")),
        ("GET", ("/apis//v1/x", "list", ["", "v1", "", "x", "", "", "x"], "apis")),
    ];
    let mut failed = Vec::new();
    for (method, (target, verb, [group, version, namespace, resource, subresource, name, parts], prefix)) in
        CASES
    {
        let info = parse(method, target).expect("a resource");
        let expected = RequestResource {
            api_prefix: prefix,
            group,
            version,
            namespace,
            resource,
            subresource,
            name,
            parts,
            field_selector: "",
            label_selector: "",
        };
        if info.kind() != RequestKind::Resource(expected) || info.verb() != *verb {
            failed.push(format!("{method} {target}: {} {:?}", info.verb(), info.kind()));
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

#[test]
fn other_paths_are_non_resource() {
    const CASES: &[(&str, &str, &str)] = &[
        ("GET", "/", "get"),
        ("GET", "", "get"),
        ("GET", "/api", "get"),
        ("GET", "/api/v1", "get"),
        ("GET", "/api/v1/", "get"),
        ("GET", "/apis", "get"),
        ("GET", "/apis/apps", "get"),
        ("GET", "/apis/apps/v1", "get"),
        ("POST", "/apis/apps/v1/", "post"),
        ("HEAD", "/livez", "head"),
        ("GET", "/version/a/b/c/d", "get"),
        ("CONNECT", "/healthz", "connect"),
        ("Foo", "/healthz", "foo"),
        ("GET", "/API/v1/pods", "get"),
        ("GET", "/apiv1/v1/pods", "get"),
    ];
    for (method, path, verb) in CASES {
        let info = parse(method, path).expect("no resource");
        assert_eq!(
            (info.kind(), info.verb(), info.path()),
            (RequestKind::NonResource, *verb, *path),
            "{path}"
        );
    }
}

#[test]
fn lists_take_their_name_from_the_field_selector() {
    const CASES: &[(&str, &str, &str, &str)] = &[
        ("GET", "fieldSelector=metadata.name%3Dx", "list", "x"),
        ("GET", "fieldSelector=metadata.name=x", "list", "x"),
        ("GET", "watch=1&fieldSelector=metadata.name%3D%3Dx", "watch", "x"),
        ("GET", "fieldSelector=metadata.name%21%3Dx", "list", ""),
        ("GET", "fieldSelector=metadata.name%3Dx&fieldSelector=metadata.name%3Dy", "list", "x"),
        ("GET", "fieldSelector=metadata.name%3D..", "list", ""),
        ("GET", "fieldSelector=metadata.name%3Da%2Fb", "list", ""),
        ("GET", "fieldSelector=metadata.name%3Da%2525", "list", ""),
        ("GET", "fieldSelector=metadata.name%3Dx&limit=a", "list", ""),
        ("GET", "fieldSelector=metadata.name%3Dx&limit=", "list", ""),
        ("GET", "fieldSelector=metadata.name%3Dx&limit=-1&timeoutSeconds=%2B5", "list", "x"),
        ("GET", "fieldSelector=metadata.name%3Dx&timeoutSeconds=1.5", "list", ""),
        ("GET", "fieldSelector=metadata.name%3Dx&labelSelector=a%20b", "list", ""),
        ("GET", "fieldSelector=metadata.name%3Dx&labelSelector=a%3Db", "list", "x"),
        ("GET", "fieldSelector=metadata.name", "list", ""),
        ("DELETE", "fieldSelector=metadata.name%3Dx", "deletecollection", ""),
    ];
    for (method, query, verb, name) in CASES {
        let info = parse(method, &format!("/api/v1/namespaces/o/pods?{query}")).expect("a resource");
        assert_eq!((info.verb(), info.object_name()), (*verb, *name), "{query}");
    }
}

#[test]
fn selectors_are_kept_for_verbs_that_support_them() {
    const CASES: &[(&str, &str, &str, &str)] = &[
        ("GET", "/api/v1/pods?fieldSelector=a%3Db&labelSelector=c", "a=b", "c"),
        ("GET", "/api/v1/pods?fieldSelector=a&fieldSelector=b", "a", ""),
        ("GET", "/api/v1/pods?field%53elector=a&labelSelecto%72=b", "a", "b"),
        ("GET", "/api/v1/pods?watch=1&labelSelector=(broken", "", "(broken"),
        ("DELETE", "/api/v1/pods?labelSelector=c", "", "c"),
        ("GET", "/api/v1/pods/x?labelSelector=c", "", ""),
        ("POST", "/api/v1/pods?labelSelector=c", "", ""),
        ("GET", "/api/v1/watch/pods?labelSelector=c", "", ""),
        ("GET", "/api/v1/pods?labelSelector=;c", "", ""),
    ];
    for (method, target, fields, labels) in CASES {
        let info = parse(method, target).expect("a resource");
        let resource = info.resource().expect("a resource");
        assert_eq!((resource.field_selector, resource.label_selector), (*fields, *labels), "{target}");
    }
}

#[test]
fn a_verb_without_a_resource_is_an_error_with_the_url() {
    const CASES: &[(&str, Option<&str>, &str)] = &[
        ("/api/v1/watch", None, "/api/v1/watch"),
        ("/api/v1/watch", Some("a=<b>&c"), "/api/v1/watch?a=<b>&c"),
        ("/api/v1/watch", Some(""), "/api/v1/watch?"),
        ("/api/v1/%77atch/", None, "/api/v1/%77atch/"),
        ("/api/v1/%77atch/\"", None, "/api/v1/watch/%22"),
        ("/(a)!'*[]", None, "/(a)!'*[]"),
        ("/(a)%2f\"", None, "/%28a%29/%22"),
    ];
    for path in ["/api/v1/watch", "/api/v1/proxy/", "/apis/apps/v1/watch"] {
        assert_eq!(parse("GET", path).err(), Some(RequestInfoError), "{path}");
    }
    for (path, query, url) in CASES {
        let message = RequestInfoError.message(path, *query);
        let expected = "failed to create RequestInfo: unable to determine kind and namespace from url, ";
        assert_eq!(message, format!("{expected}{url}"), "{path}");
    }
}

#[test]
fn long_running_requests_depend_on_verb_subresource_and_path() {
    const CASES: &[(&str, &str, bool)] = &[
        ("GET", "/api/v1/pods?watch=1", true),
        ("GET", "/api/v1/watch/pods", true),
        ("GET", "/api/v1/proxy/nodes/n", true),
        ("POST", "/api/v1/namespaces/o/pods/f/exec", true),
        ("GET", "/api/v1/namespaces/o/pods/f/attach", true),
        ("GET", "/api/v1/namespaces/o/pods/f/log", true),
        ("GET", "/api/v1/namespaces/o/pods/f/portforward", true),
        ("PATCH", "/api/v1/namespaces/o/services/f/proxy/a/b", true),
        ("GET", "/debug/pprof/profile", true),
        ("GET", "/debug/pprof", false),
        ("WATCH", "/healthz", true),
        ("GET", "/api/v1/pods", false),
        ("GET", "/api/v1/namespaces/o/pods/f/status", false),
        ("GET", "/x/exec", false),
    ];
    for (method, target, long) in CASES {
        assert_eq!(parse(method, target).expect("readable").is_long_running(), *long, "{method} {target}");
    }
}

#[test]
fn only_get_list_and_watch_are_reads() {
    const CASES: &[(&str, &str, bool)] = &[
        ("GET", "/api/v1/pods", false),
        ("HEAD", "/api/v1/pods", false),
        ("GET", "/api/v1/pods/x", false),
        ("GET", "/version", false),
        ("HEAD", "/version", true),
        ("POST", "/api/v1/pods", true),
        ("DELETE", "/api/v1/pods", true),
        ("POST", "/api/v1/watch/pods", false),
    ];
    for (method, target, mutating) in CASES {
        assert_eq!(parse(method, target).expect("readable").is_mutating(), *mutating, "{method} {target}");
    }
}

#[test]
fn a_refusal_names_the_request() {
    let info = parse("DELETE", "/apis/apps/v1/namespaces/ns/deployments/d/scale").expect("a resource");
    assert_eq!(
        Status::forbidden(&info.attempt("y"), "").message,
        r#"deployments.apps "d" is forbidden: User "y" cannot delete resource "deployments/scale" in API group "apps" in the namespace "ns""#
    );
    let info = parse("GET", "/a%22b").expect("no resource");
    assert_eq!(
        Status::forbidden(&info.attempt("y"), "").message,
        r#"forbidden: User "y" cannot get path "/a\"b""#
    );
}

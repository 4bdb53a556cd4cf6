//! What a request to the embedded backend is about: resource, namespace, name, query.

use super::resources::{NAMESPACES, Resource, find};

/// A resource path, taken apart.
#[derive(Debug, Clone)]
pub(super) struct Target {
    pub(super) resource: &'static Resource,
    /// Empty for cluster-wide resources, and for all namespaces.
    pub(super) namespace: String,
    /// Empty for a whole collection.
    pub(super) name: String,
    /// Empty for the object itself.
    pub(super) subresource: String,
}

impl Target {
    /// Reads a path below `/api` or `/apis`; `None` when nothing like it is served.
    pub(super) fn parse(path: &str) -> Option<Self> {
        let parts = path
            .split('/')
            .skip(1)
            .map(|part| decode(part, false))
            .collect::<Vec<_>>();
        let parts = parts.iter().map(String::as_str).collect::<Vec<_>>();
        let (group, rest) = match parts.as_slice() {
            ["api", "v1", rest @ ..] => ("", rest),
            ["apis", group, "v1", rest @ ..] => (*group, rest),
            _ => return None,
        };
        let (namespace, rest) = match rest {
            [NAMESPACES, _] => ("", rest),
            [NAMESPACES, _, subresource] if find(group, subresource).is_none() => ("", rest),
            [NAMESPACES, namespace, rest @ ..] if !rest.is_empty() => (*namespace, rest),
            _ => ("", rest),
        };
        let (plural, name, subresource) = match rest {
            [plural] => (*plural, "", ""),
            [plural, name] => (*plural, *name, ""),
            [plural, name, subresource] => (*plural, *name, *subresource),
            _ => return None,
        };
        let resource = find(group, plural)?;
        let known = subresource.is_empty() || resource.subresources.contains(&subresource);
        let placed = if resource.namespaced {
            // An object needs its namespace; a collection may be asked for in all of them.
            name.is_empty() || !namespace.is_empty()
        } else {
            namespace.is_empty()
        };
        (known && placed && !(rest.len() > 1 && name.is_empty())).then(|| Self {
            resource,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            subresource: subresource.to_owned(),
        })
    }

    /// The namespace as a filter: `None` for all.
    pub(super) fn scope(&self) -> Option<&str> {
        (!self.namespace.is_empty()).then_some(self.namespace.as_str())
    }

    /// `resource` or `resource/subresource`, as a denial names it.
    pub(super) fn resource_path(&self) -> String {
        if self.subresource.is_empty() {
            self.resource.plural.to_owned()
        } else {
            format!("{}/{}", self.resource.plural, self.subresource)
        }
    }
}

/// The query of a request.
#[derive(Debug, Clone, Default)]
pub(super) struct Query(Vec<(String, String)>);

impl Query {
    pub(super) fn parse(query: Option<&str>) -> Self {
        let pairs = query
            .unwrap_or_default()
            .split('&')
            .filter(|pair| !pair.is_empty())
            .map(|pair| {
                let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
                (decode(key, true), decode(value, true))
            });
        Self(pairs.collect())
    }

    /// The first value of a parameter; empty if it is not there.
    pub(super) fn value(&self, key: &str) -> &str {
        self.0
            .iter()
            .find(|(known, _)| known == key)
            .map_or("", |(_, value)| value.as_str())
    }

    pub(super) fn is_true(&self, key: &str) -> bool {
        matches!(self.value(key), "true" | "1")
    }

    pub(super) fn dry_run(&self) -> bool {
        self.value("dryRun") == "All"
    }
}

/// Undoes percent escapes; what is not one stays as it is.
pub(super) fn decode(text: &str, plus_is_blank: bool) -> String {
    let mut decoded = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        let mut ahead = bytes.clone();
        let escaped = match (byte, ahead.next().and_then(hex), ahead.next().and_then(hex)) {
            (b'%', Some(high), Some(low)) => Some(high * 16 + low),
            _ => None,
        };
        match escaped {
            Some(escaped) => {
                decoded.push(escaped);
                bytes = ahead;
            }
            None if byte == b'+' && plus_is_blank => decoded.push(b' '),
            None => decoded.push(byte),
        }
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit)
        .to_digit(16)
        .and_then(|value| u8::try_from(value).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    type Parts = (&'static str, &'static str, &'static str, &'static str);

    #[test]
    fn paths_are_taken_apart() {
        const CASES: &[(&str, Option<Parts>)] = &[
            ("/api/v1/configmaps", Some(("configmaps", "", "", ""))),
            ("/api/v1/namespaces", Some(("namespaces", "", "", ""))),
            ("/api/v1/namespaces/a", Some(("namespaces", "", "a", ""))),
            (
                "/api/v1/namespaces/a/status",
                Some(("namespaces", "", "a", "status")),
            ),
            ("/api/v1/namespaces/a/secrets", Some(("secrets", "a", "", ""))),
            (
                "/api/v1/namespaces/a/secrets/b%2Ec",
                Some(("secrets", "a", "b.c", "")),
            ),
            (
                "/apis/certificates.k8s.io/v1/certificatesigningrequests/x/approval",
                Some(("certificatesigningrequests", "", "x", "approval")),
            ),
            ("/api/v1/namespaces/a/secrets/b/token", None),
            ("/api/v1/secrets/b", None),
            ("/api/v1/namespaces/a/nodes", None),
            ("/api/v1/namespaces/a/secrets/", None),
            ("/api/v2/namespaces", None),
            ("/apis/apps/v1/deployments", None),
        ];
        for (path, want) in CASES {
            let target = Target::parse(path);
            let got = target.as_ref().map(|t| {
                (
                    t.resource.plural,
                    t.namespace.as_str(),
                    t.name.as_str(),
                    t.subresource.as_str(),
                )
            });
            assert_eq!(got, *want, "{path}");
        }
    }

    #[test]
    fn escapes_are_undone_once_and_broken_ones_kept() {
        for (text, plus, want) in [
            ("a%20b", false, "a b"),
            ("a+b", true, "a b"),
            ("a+b", false, "a+b"),
            ("%zz%4", true, "%zz%4"),
        ] {
            assert_eq!(decode(text, plus), want);
        }
    }
}

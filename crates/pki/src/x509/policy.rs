//! Certificate policies: RFC 5280, section 6.1, as updated by RFC 9618.
//!
//! The initial policy set is anyPolicy, so the only result is whether a chain with `requireExplicitPolicy` has a valid
//! policy left at its end. The last level of the policy graph is enough for that: the levels above it serve to list the
//! valid policies, which no caller needs.

use std::collections::{BTreeMap, BTreeSet};

use super::certificate::{Certificate, ParseError};
use super::der::{DerReader, tag};

/// 2.5.29.32.0
const ANY_POLICY: &[u8] = &[0x55, 0x1d, 0x20, 0x00];

/// The policy extensions of a certificate.
#[derive(Debug, Clone, Default)]
pub struct CertificatePolicies {
    named: Vec<Vec<u8>>,
    /// `issuerDomainPolicy`, `subjectDomainPolicy`.
    mappings: Vec<(Vec<u8>, Vec<u8>)>,
    require_explicit: Option<i64>,
    inhibit_mapping: Option<i64>,
    inhibit_any: Option<i64>,
}

impl CertificatePolicies {
    pub(crate) fn parse_policies(&mut self, mut der: DerReader<'_>) -> Result<(), ParseError> {
        const INVALID: ParseError = ParseError("x509: invalid certificate policies");
        let mut list = der.enter(tag::SEQUENCE).ok_or(INVALID)?;
        let mut seen = BTreeSet::new();
        while !list.is_empty() {
            let policy = list.enter(tag::SEQUENCE).and_then(|mut one| one.read(tag::OID)).ok_or(INVALID)?;
            if !well_formed(policy) || !seen.insert(policy) {
                return Err(INVALID);
            }
            self.named.push(policy.to_vec());
        }
        Ok(())
    }

    pub(crate) fn parse_mappings(&mut self, mut der: DerReader<'_>) -> Result<(), ParseError> {
        const INVALID: ParseError = ParseError("x509: invalid policy mappings extension");
        let mut list = der.enter(tag::SEQUENCE).ok_or(INVALID)?;
        while !list.is_empty() {
            let mut mapping = list.enter(tag::SEQUENCE).ok_or(INVALID)?;
            let issuer = mapping.read(tag::OID).ok_or(INVALID)?;
            let subject = mapping.read(tag::OID).ok_or(INVALID)?;
            self.mappings.push((issuer.to_vec(), subject.to_vec()));
        }
        Ok(())
    }

    pub(crate) fn parse_constraints(&mut self, mut der: DerReader<'_>) -> Result<(), ParseError> {
        const INVALID: ParseError = ParseError("x509: invalid policy constraints extension");
        let mut list = der.enter(tag::SEQUENCE).ok_or(INVALID)?;
        if list.peek(tag::context(0)) {
            self.require_explicit = Some(list.int64_tagged(tag::context(0)).ok_or(INVALID)?);
        }
        if list.peek(tag::context(1)) {
            self.inhibit_mapping = Some(list.int64_tagged(tag::context(1)).ok_or(INVALID)?);
        }
        Ok(())
    }

    pub(crate) fn parse_inhibit_any(&mut self, mut der: DerReader<'_>) -> Result<(), ParseError> {
        let skip = der.int64().ok_or(ParseError("x509: invalid inhibit any policy extension"))?;
        self.inhibit_any = Some(skip);
        Ok(())
    }
}

/// Whether the content of an OID is a sequence of minimally encoded arcs, of any size.
fn well_formed(oid: &[u8]) -> bool {
    let mut start = true;
    for octet in oid {
        if start && *octet == 0x80 {
            return false;
        }
        start = octet & 0x80 == 0;
    }
    !oid.is_empty() && start
}

/// Lowers a counter to the value of an extension, unless that is absent or negative.
fn lower(counter: &mut i64, to: Option<i64>) {
    if let Some(to) = to.filter(|to| *to >= 0) {
        *counter = to.min(*counter);
    }
}

/// Whether the policies of a chain, leaf first, are valid.
// go: crypto/x509/verify.go, policiesValid
pub(crate) fn chain_allowed(chain: &[&Certificate]) -> bool {
    let Some((_anchor, below)) = chain.split_last().filter(|(_, below)| !below.is_empty()) else {
        return true;
    };
    let start = i64::try_from(below.len()).unwrap_or(i64::MAX - 1) + 1;
    let (mut explicit, mut mapping, mut inhibit_any) = (start, start, start);
    // The valid policies, each with its expected policies in the next certificate.
    let any = ANY_POLICY.to_vec();
    let mut level: Option<BTreeMap<Vec<u8>, Vec<Vec<u8>>>> = Some(BTreeMap::from([(any.clone(), vec![any])]));

    for (depth, certificate) in below.iter().enumerate().rev() {
        let is_leaf = depth == 0;
        let self_issued = certificate.issuer == certificate.raw_subject;
        let own = &certificate.extensions.policies;
        if own.named.is_empty() {
            level = None;
        }
        if explicit == 0 && level.is_none() {
            return false;
        }
        if let Some(above) = level {
            let takes_any = inhibit_any > 0 || (!is_leaf && self_issued);
            let mut next = next_level(&above, &own.named, takes_any);
            if !is_leaf && !own.mappings.is_empty() && !map(&mut next, &own.mappings, mapping > 0) {
                return false;
            }
            level = Some(next);
        }
        if !is_leaf {
            if !self_issued {
                for counter in [&mut explicit, &mut mapping, &mut inhibit_any] {
                    *counter = (*counter - 1).max(0);
                }
            }
            lower(&mut explicit, own.require_explicit);
            lower(&mut mapping, own.inhibit_mapping);
            lower(&mut inhibit_any, own.inhibit_any);
        }
    }
    explicit = (explicit - 1).max(0);
    if below.first().is_some_and(|leaf| leaf.extensions.policies.require_explicit == Some(0)) {
        explicit = 0;
    }
    explicit > 0 || level.is_some_and(|level| !level.is_empty())
}

type PolicyLevel = BTreeMap<Vec<u8>, Vec<Vec<u8>>>;

/// The next level: the policies of a certificate that the level above expects.
fn next_level(above: &PolicyLevel, policies: &[Vec<u8>], takes_any: bool) -> PolicyLevel {
    let expected: BTreeSet<&Vec<u8>> = above.values().flatten().collect();
    let any_above = above.contains_key(ANY_POLICY);
    let mut next: PolicyLevel = policies
        .iter()
        .filter(|policy| *policy != ANY_POLICY && (any_above || expected.contains(policy)))
        .map(|policy| (policy.clone(), vec![policy.clone()]))
        .collect();
    if takes_any && policies.iter().any(|policy| policy == ANY_POLICY) {
        for policy in expected {
            next.entry(policy.clone()).or_insert_with(|| vec![policy.clone()]);
        }
    }
    next
}

/// Applies policy mappings, or removes the mapped policies if mapping is inhibited. `false` for an invalid mapping.
fn map(level: &mut PolicyLevel, mappings: &[(Vec<u8>, Vec<u8>)], allowed: bool) -> bool {
    if !allowed {
        for (issuer, _) in mappings {
            level.remove(issuer);
        }
        return true;
    }
    let mut targets: PolicyLevel = BTreeMap::new();
    for (issuer, subject) in mappings {
        if issuer == ANY_POLICY || subject == ANY_POLICY {
            return false;
        }
        targets.entry(issuer.clone()).or_default().push(subject.clone());
    }
    let any = level.contains_key(ANY_POLICY);
    for (issuer, subjects) in targets {
        if any || level.contains_key(&issuer) {
            level.insert(issuer, subjects);
        }
    }
    true
}

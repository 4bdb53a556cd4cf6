//! The function libraries of Kubernetes' environments, one module each.
//!
//! A library imports none of those above it in this table:
//!
//! | module | functions |
//! |---|---|
//! | `authorizer` | `authorizer.group('apps').resource('deployments').check('create')` |
//! | `named_formats` | `format.dns1123Label().validate(text)` |
//! | `format` | `'%s: %.2f'.format([name, share])` |
//! | `json_patch` | `jsonpatch.escapeKey(key)` |
//! | `semver` | `semver('1.2.3').major()` |
//! | `quantity` | `quantity('500m').isLessThan(quantity('2Gi'))` |
//! | `url` | `url(text).getHost()` |
//! | `ip` | `cidr('10.0.0.0/8').containsIP(text)` |
//! | `time` | `timestamp(text).getFullYear()` |
//! | `optionals` | `optional.of(value).hasValue()` |
//! | `sets` | `sets.contains(list, part)` |
//! | `strings` | `text.split(',')`, `text.matches(pattern)` |
//! | `lists` | `list.sort()`, `list.sum()` |
//! | `standard` | operators, conversions, `size` |

pub(crate) mod authorizer;
mod format;
mod ip;
mod json_patch;
mod lists;
mod named_formats;
mod optionals;
pub(crate) mod quantity;
mod semver;
mod sets;
mod standard;
mod strings;
pub(crate) mod time;
mod url;

use super::library::Library;

/// The libraries of all environments. Where two declare one function, its overloads are in their order.
pub(super) fn base(lists_come_last: bool) -> impl Iterator<Item = &'static dyn Library> {
    let standard: &'static dyn Library = &standard::Standard;
    let lists: &'static dyn Library = &lists::Lists;
    let (before, after) = if lists_come_last { (None, Some(lists)) } else { (Some(lists), None) };
    std::iter::once(standard).chain(before).chain(OTHERS).chain(after)
}

const OTHERS: [&dyn Library; 11] = [
    &strings::Strings,
    &sets::Sets,
    &optionals::Optionals,
    &time::Times,
    &ip::IpAddresses,
    &url::Urls,
    &quantity::Quantities,
    &semver::Semvers,
    &format::Format,
    &named_formats::NamedFormats,
    &authorizer::Authorizers,
];

/// The library of the environments that patch objects.
pub(super) const PATCHES: &dyn Library = &json_patch::JsonPatch;

//! Apply configurations, merged into objects as kube-apiserver merges those of mutating admission policies.
//!
//! An apply configuration is a part of an object: it sets the fields that it has and leaves the others. What is a field of its own,
//! and which element of a list is meant, is in the schema that the API server publishes for the group and version
//! (`/openapi/v3/apis/apps/v1`): [`Schemas`] holds it, and [`Schemas::merge`] merges.
//!
//! # Where kube-apiserver does something else
//!
//! kube-apiserver merges into a value of a Go type where it has one, and into plain JSON for custom resources. Here the object is
//! always JSON, as an API server has served it; the results are then the same (`tests/reference`). They are not for JSON that a Go
//! type would not have served:
//!
//! - A field that the type does not declare is gone before kube-apiserver merges. Here it is an error, as for a custom resource.
//! - A null in a list is a zero value there, and an error here if the list is merged element by element.
//! - kube-apiserver reads its result into the Go type. What a schema allows and the type does not, such as `1.5` replicas or a
//!   quantity that is none, is an error there. Here it is in the result, for the API server to refuse.
//! - That also drops empty values and writes quantities in another way. Here they stay as they are.
//!
//! Go visits the fields of an object in any order, which is then that of faults; here the order is that of names. kube-apiserver
//! shows the value of a Go type in its own way in faults of the object.
//!
//! Bounded here alone: the depth of values ([`MAX_DEPTH`]), the nesting and the members of a document, the keys of a list (64), the
//! size of a default of a key (1 KiB), and the text of faults.
//!
//! Everything here is computation. Nothing here decides where documents come from, how long they are kept, or what a policy may set.
//!
//! | module | what it has |
//! |---|---|
//! | `declarations` | [`Declarations`]: the types of the kinds of a document, for expressions about their objects |
//! | `schemas` | [`Schemas`]: a document, the kinds in it, and the steps of a merge |
//! | `document` | reads the document: OpenAPI v3 into types |
//! | `merging` | two values of a type into one |
//! | `undeclared` | the fields that a kind does not have |
//! | `validation` | whether a value is of a type, and what in it is atomic |
//! | `element` | the elements of paths, which are the identities of elements of lists |
//! | `schema` | types |
//! | `errors` | what is wrong, in kube-apiserver's words |
//! | `text` | values in messages |

mod declarations;
mod document;
mod element;
mod errors;
mod merging;
mod schema;
mod schemas;
mod text;
mod undeclared;
mod validation;

pub use declarations::{Declarations, DeclaredObject, DeclaredType};
pub use errors::{Faults, MAX_DEPTH, MAX_SIZE, MergeError, SchemaError};
pub use schemas::Schemas;

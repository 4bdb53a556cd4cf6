//! The outcomes of self-checks.

use super::*;

#[test]
fn what_this_machine_lacks_costs_an_endpoint_no_trust() {
    let (address, cause) = (|| "192.0.2.1:6443".to_owned(), || "Too many open files".to_owned());
    let local = ConnectError::Local { address: address(), cause: cause() };
    let refused = ConnectError::Tcp { address: address(), cause: cause() };
    let outcome = |error: ConnectError| CheckOutcome::from(ProbeError::Send(SendError::Connect(error)));
    assert!(matches!(outcome(local), CheckOutcome::Inconclusive(cause) if cause.contains("open files")));
    assert!(matches!(outcome(refused), CheckOutcome::Unreachable(_)));
    assert!(matches!(CheckOutcome::from(ProbeError::Timeout), CheckOutcome::Inconclusive(_)));
}

//! The errors of an `AuthorizationConfiguration`, for tests that compare them with kube-apiserver's own.

use portcullis_cel::CelGo;

use super::{AuthorizationConfiguration, InputReader, decode, kubeconfig_problem, validate};

/// The error with which kube-apiserver would reject the content of a file; `None` if it accepts it. Leaves out the rules
/// of the gateway.
// kubernetes: pkg/kubeapiserver/authorizer/config.go, LoadAndValidateData
pub fn authorization_configuration_error(text: &[u8]) -> Option<String> {
    let configuration = match decode::<AuthorizationConfiguration>(text) {
        Ok((configuration, _)) => configuration,
        Err(error) => {
            return Some(format!("failed to load AuthorizationConfiguration from file: {}", error.problem));
        }
    };
    let mut inputs = InputReader::default();
    let errors =
        validate(&configuration, CelGo::REFERENCE, |file| kubeconfig_problem(file, &mut inputs)).err()?;
    // apimachinery: pkg/util/errors/errors.go, aggregate.Error
    let mut texts: Vec<String> = Vec::with_capacity(errors.len());
    for text in errors.iter().map(ToString::to_string) {
        if !texts.contains(&text) {
            texts.push(text);
        }
    }
    Some(if let [one] = texts.as_slice() { one.clone() } else { format!("[{}]", texts.join(", ")) })
}

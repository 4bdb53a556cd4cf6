//! Signer names, `example.com/name`.

use std::str::FromStr;

/// The name of a custom signer, never under `kubernetes.io`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SignerName(String);

/// Why a text is not the name of a custom signer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SignerNameError {
    /// The text does not have exactly one `/` with text on both sides.
    #[error("must be a fully qualified domain and path of the form 'example.com/signer-name'")]
    Form,
    /// The domain has only one label.
    #[error("should be a domain with at least two segments separated by dots")]
    OneLabel,
    /// A label is too long, or has invalid characters.
    #[error(
        "validating label {0:?}: a lower-case label consists of at most {1} lower-case letters, digits and '-', and begins and ends with a letter or digit"
    )]
    Label(String, usize),
    /// The domain or the path is too long.
    #[error("may not be more than {0} bytes")]
    TooLong(usize),
    /// Kubernetes reserves the domain.
    #[error("signer names under kubernetes.io are reserved: choose another domain")]
    Reserved,
}

impl FromStr for SignerName {
    type Err = SignerNameError;

    // kubernetes: pkg/apis/certificates/validation/validation.go, ValidateSignerName
    fn from_str(text: &str) -> Result<Self, SignerNameError> {
        let (domain, path) = text.split_once('/').ok_or(SignerNameError::Form)?;
        if domain.is_empty() || path.is_empty() || path.contains('/') {
            return Err(SignerNameError::Form);
        }
        if domain.len() > 253 {
            return Err(SignerNameError::TooLong(253));
        }
        // A domain of 253 bytes, a slash, and a path of 63 + 1 + 253 bytes.
        if text.len() > 571 {
            return Err(SignerNameError::TooLong(571));
        }
        if !domain.contains('.') {
            return Err(SignerNameError::OneLabel);
        }
        let check = |labels: &str, longest: usize| match labels
            .split('.')
            .find(|label| !is_label(label) || label.len() > longest)
        {
            Some(label) => Err(SignerNameError::Label(label.to_owned(), longest)),
            None => Ok(()),
        };
        check(domain, 63)?;
        check(path, 253)?;
        if domain == "kubernetes.io" {
            return Err(SignerNameError::Reserved);
        }
        Ok(Self(text.to_owned()))
    }
}

impl SignerName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn is_label(text: &str) -> bool {
    let alphanumeric = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let ends = [text.bytes().next(), text.bytes().next_back()];
    ends.into_iter().all(|end| end.is_some_and(alphanumeric))
        && text.bytes().all(|byte| alphanumeric(byte) || byte == b'-')
}

#[cfg(test)]
mod tests {
    use super::SignerName;

    #[test]
    fn names_are_a_domain_and_a_path() {
        let long_label = format!("{}.com/a", "a".repeat(64));
        let long_path = format!("example.com/{}", "a".repeat(253));
        let too_long_path = format!("example.com/{}", "a".repeat(254));
        let long_domain = format!("{}/a", vec!["a".repeat(62); 5].join("."));
        let cases = [
            ("example.com/name", true),
            ("example.com/a.b-c", true),
            ("a.example.com/1", true),
            (long_path.as_str(), true),
            ("example.com", false),
            ("example.com/", false),
            ("/name", false),
            ("example.com/a/b", false),
            ("example/name", false),
            ("Example.com/name", false),
            ("example.com/Name", false),
            ("example.com/*", false),
            ("example.com/a_b", false),
            ("example.com/-a", false),
            ("example.com/a..b", false),
            ("example..com/a", false),
            ("kubernetes.io/kubelet-serving", false),
            ("kubernetes.io/own", false),
            (&long_label, false),
            (&too_long_path, false),
            (&long_domain, false),
        ];
        for (name, good) in cases {
            assert_eq!(name.parse::<SignerName>().is_ok(), good, "{name}");
        }
    }
}

//! Kubeconfig files, as client-go reads them. They may contain credentials: no error quotes a file.

use kube::config::KubeconfigError;

/// Describes why a kubeconfig cannot be parsed. Shows only the position: the parser's error would quote the lines
/// around it, secrets included.
pub fn unreadable(error: &KubeconfigError) -> String {
    match error {
        KubeconfigError::Parse(error) => match error.location() {
            Some(place) => {
                let (line, column) = (place.line(), place.column());
                format!("it is not a kubeconfig in YAML: syntax error at line {line}, column {column}")
            }
            None => "it is not a kubeconfig in YAML".to_owned(),
        },
        error => error.to_string(),
    }
}

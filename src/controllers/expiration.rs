//! The gauges of CA expiration, exposed while a controller runs that signs with these CAs.

use portcullis_system::clock::UnixTime;

use super::ControllerContext;

/// The gauges of some signers.
pub(super) struct ExpirationGauges<'a> {
    context: &'a ControllerContext,
    signers: Vec<String>,
}

impl<'a> ExpirationGauges<'a> {
    /// Shows the end of the CA certificate of each signer.
    pub(super) fn show<'b>(
        context: &'a ControllerContext,
        ends: impl Iterator<Item = (&'b str, UnixTime)>,
    ) -> Self {
        let mut signers = Vec::new();
        for (signer, end) in ends {
            let end = i64::try_from(end.as_secs()).unwrap_or(i64::MAX);
            let labels = [&*context.cluster, signer];
            context.metrics.controllers.authority_expiration.with_label_values(&labels).set(end);
            signers.push(signer.to_owned());
        }
        Self { context, signers }
    }
}

impl Drop for ExpirationGauges<'_> {
    fn drop(&mut self) {
        for signer in &self.signers {
            let labels = [&*self.context.cluster, signer];
            self.context.metrics.controllers.authority_expiration.remove_label_values(&labels).ok();
        }
    }
}

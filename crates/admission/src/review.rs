//! `AdmissionReview`s, and the statuses that follow from their responses.

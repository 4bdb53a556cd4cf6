//! The `Status` object that every early answer carries.

//! The flow table: which flows a frame matches.

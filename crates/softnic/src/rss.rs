//! Receive-side scaling: indirection tables and the hash of each RSS queue pair.

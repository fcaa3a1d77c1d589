//! Copies from and to the client's memory at addresses that it gave in a command, as the kernel makes them:
//! an address that is not mapped is EFAULT, and nothing crashes.
//!
//! The client is this process, so its memory could be read directly; but only the kernel can say without a
//! signal whether an address is mapped (process_vm_readv(2)).

use std::ffi::c_ulong;

use softnic::errno::{EFAULT, Verb, VerbErrno};

type Transfer = unsafe extern "C" fn(
    libc::pid_t,
    *const libc::iovec,
    c_ulong,
    *const libc::iovec,
    c_ulong,
    c_ulong,
) -> isize;

/// Fills `into` with the bytes at `address`.
pub(super) fn copy_in(address: u64, into: &mut [u8]) -> Verb<()> {
    transfer(libc::process_vm_readv, into.as_mut_ptr(), into.len(), address)
}

/// Writes `bytes` to `address`.
pub(super) fn copy_out(address: u64, bytes: &[u8]) -> Verb<()> {
    transfer(libc::process_vm_writev, bytes.as_ptr().cast_mut(), bytes.len(), address)
}

fn transfer(call: Transfer, local: *mut u8, bytes: usize, address: u64) -> Verb<()> {
    if bytes == 0 {
        return Ok(());
    }
    let address = usize::try_from(address).map_err(|_| EFAULT)?;
    let here = libc::iovec { iov_base: local.cast(), iov_len: bytes };
    let there = libc::iovec { iov_base: std::ptr::with_exposed_provenance_mut(address), iov_len: bytes };
    // SAFETY: asks for a number.
    let process = unsafe { libc::getpid() };
    // SAFETY: the kernel reads or fills at most `bytes` bytes at `local`, which the callers hold, and checks
    // the other address; what is there belongs to the client, who gave it for this.
    let moved = unsafe { call(process, &raw const here, 1, &raw const there, 1, 0) };
    match usize::try_from(moved) {
        Ok(moved) if moved == bytes => Ok(()),
        // As much as was mapped.
        Ok(_) => Err(EFAULT),
        Err(_) => Err(VerbErrno::from(std::io::Error::last_os_error())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no process_vm_readv(2)")]
    fn what_is_mapped_is_copied() {
        let from = [1_u8, 2, 3];
        let mut into = [0; 3];
        copy_in(from.as_ptr().expose_provenance() as u64, &mut into).unwrap();
        assert_eq!(into, from);
        let mut room = [0_u8; 3];
        copy_out(room.as_mut_ptr().expose_provenance() as u64, &from).unwrap();
        assert_eq!(room, from);
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no process_vm_readv(2)")]
    fn what_is_not_mapped_is_a_fault() {
        for address in [0, 8, u64::MAX, 1 << 63] {
            assert_eq!(copy_in(address, &mut [0; 16]), Err(EFAULT), "{address:#x}");
            assert_eq!(copy_out(address, &[0; 16]), Err(EFAULT), "{address:#x}");
        }
    }
}

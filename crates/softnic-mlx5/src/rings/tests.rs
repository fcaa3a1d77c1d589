//! Layouts, by the bytes.

use softnic::formats::WorkOpcode;

use super::*;

const CLOCK: ClockRules = ClockRules { kilohertz: 1_000_000, mask: u64::MAX };

/// Memory of a test, aligned like a page.
#[repr(align(4096))]
struct Page([u8; 4_096]);

fn address(page: &mut Page) -> u64 {
    page.0.as_mut_ptr().expose_provenance() as u64
}

#[test]
fn a_completion_has_its_fields_where_the_provider_reads_them() {
    let (mut buffer, mut doorbell) = (Box::new(Page([0; 4_096])), Box::new(Page([0; 4_096])));
    for (bytes, offset) in [(64, 0), (128, 64)] {
        let layout = CompletionLayout {
            buffer: address(&mut buffer),
            doorbell: address(&mut doorbell),
            completions: 4,
            completion_bytes: bytes,
        };
        let mut ring = CompletionRing::new(&layout, CLOCK).unwrap();
        let mut cqe = Cqe::new(0xabcdef << 16 | 0x1234, WorkOpcode::Receive, Status::Success, 0);
        (cqe.byte_len, cqe.flow_tag, cqe.cvlan) = (0x0102_0304, 0x0055_6677, 0x2042);
        cqe.timestamp_ns = 0x0807_0605_0403_0201;
        cqe.set_checksum_ok(true);
        ring.write(&cqe, true);
        let written = &buffer.0[offset..offset + 64];
        // hds_ip_ext, l4_hdr_type_etc, vlan_info, srqn_uidx.
        assert_eq!(written[28..36], [7, 9, 0x20, 0x42, 0, 0xab, 0xcd, 0xef]);
        // byte_cnt, timestamp, flow tag, wqe_counter, signature, op_own.
        assert_eq!(written[44..48], [1, 2, 3, 4]);
        assert_eq!(written[48..56], [8, 7, 6, 5, 4, 3, 2, 1]);
        assert_eq!(written[56..64], [0, 0x55, 0x66, 0x77, 0x12, 0x34, 0, 0x20]);
        ring.write(&Cqe::failed(5, WorkOpcode::Receive, Status::LocalProtection, 0), false);
        let failed = &buffer.0[bytes as usize + offset..][..64];
        assert_eq!((failed[55], failed[61], failed[63]), (4, 5, 0xe0));
        assert!(!ring.is_error(0) && ring.is_error(1));
    }
}

#[test]
fn the_owner_bit_changes_with_every_turn() {
    let (mut buffer, mut doorbell) = (Box::new(Page([0; 4_096])), Box::new(Page([0; 4_096])));
    let layout = CompletionLayout {
        buffer: address(&mut buffer),
        doorbell: address(&mut doorbell),
        completions: 2,
        completion_bytes: 64,
    };
    let mut ring = CompletionRing::new(&layout, CLOCK).unwrap();
    let cqe = Cqe::new(0, WorkOpcode::Receive, Status::Success, 0);
    let mut owners = Vec::new();
    for consumed in 0..6_u32 {
        assert_eq!(ring.room_for(2), 2);
        ring.write(&cqe, false);
        owners.push(buffer.0[(consumed as usize % 2) * 64 + 63] & 1);
        doorbell.0[..4].copy_from_slice(&(consumed + 1).to_be_bytes());
    }
    assert_eq!(owners, [0, 0, 1, 1, 0, 0]);
}

#[test]
fn sizes_that_no_device_has_are_refused() {
    let (mut buffer, mut doorbell) = (Box::new(Page([0; 4_096])), Box::new(Page([0; 4_096])));
    let (buffer, doorbell) = (address(&mut buffer), address(&mut doorbell));
    for (completions, completion_bytes) in [(0, 64), (3, 64), (1 << 23, 64), (4, 0), (4, 32), (4, 256)] {
        let layout = CompletionLayout { buffer, doorbell, completions, completion_bytes };
        assert_eq!(CompletionRing::new(&layout, CLOCK).unwrap_err(), EINVAL);
    }
    for log_request_bytes in [0, 3, 7, 31, u32::MAX] {
        let layout = ReceiveLayout { buffer, doorbell, requests: 4, log_request_bytes, user_index: 0 };
        assert_eq!(ReceiveRing::new(&layout).unwrap_err(), EINVAL);
    }
}

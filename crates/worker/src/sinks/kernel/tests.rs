//! What a policy's options ask of the interface. `steerd`'s tests (`kernel_sink.rs`) use real ones.

use packet::MacAddr;

use super::*;

const PORT: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);

fn stations(mtu_bytes: Option<u32>) -> [Station; 2] {
    [Station { port: 1, mac: None, mtu_bytes: None }, Station { port: 2, mac: Some(PORT), mtu_bytes }]
}

#[test]
fn the_interface_gets_the_address_and_the_mtu_of_its_port() {
    let made = |options: &KernelSink, mtu_bytes| {
        let made = interface(options, 2, &stations(mtu_bytes)).expect("known");
        (made.mac, made.mtu, made.mtu_of_port)
    };
    let options = KernelSink::new("host0");
    assert_eq!(made(&options, Some(9000)), (Some(PORT), None, 9000));
    assert_eq!(made(&options, None), (Some(PORT), None, MTU_DEFAULT));
    assert_eq!(made(&options, Some(1 << 20)), (Some(PORT), None, *KernelSink::MTU.end()));
    let keep = KernelSink { mac: TapMac::Keep, mtu: Some(1400), ..options.clone() };
    assert_eq!(made(&keep, Some(9000)), (None, Some(1400), 9000));
    let other = MacAddr([2, 0, 0, 0, 0, 1]);
    let given = KernelSink { mac: TapMac::Address(other), ..options };
    assert_eq!(made(&given, None).0, Some(other));
}

#[test]
fn an_address_that_is_not_known_is_an_error_with_a_remedy() {
    let error = interface(&KernelSink::new("host0"), 1, &stations(None)).expect_err("no address");
    assert!(matches!(error, TapError::NoStation { port: 1 }), "{error:?}");
    assert!(error.to_string().contains("mac ="), "{error}");
    let keep = KernelSink { mac: TapMac::Keep, ..KernelSink::new("host0") };
    assert!(interface(&keep, 1, &stations(None)).is_ok());
}

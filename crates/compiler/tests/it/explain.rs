//! `Program::explain_sent` on compiled programs.

use device_model::DeviceModel;
use packet::DeepKey;
use packet::build::FrameBuilder;
use policy::{NoFiles, Source};
use program::RuleId;

#[test]
fn sent_and_received_packets_are_explained_separately() {
    let text = "version = 1\ndefault = 'drop'\n[groups.g]\nworkers = [0]\n\
        [[rules]]\nname = 'own'\nmatch = { dst = '192.0.2.1' }\naction = 'pass'\ndirection = 'egress'\n\
        [[rules]]\nname = 'not-there'\nmatch = { dst = '192.0.2.0/24' }\naction = 'drop'\ndirection = 'egress'\n\
        [[rules]]\nname = 'web'\nmatch = { dst_port = 80 }\naction = { steer = 'g' }\n\
        [[rules]]\nname = 'ear'\nmatch = { any = true }\naction = { sniff = 'g' }\n";
    let source = Source::new("p.toml", text);
    let (policy, _) = policy::parse(&source, &NoFiles).expect("it parses");
    let program = compiler::compile(&policy, &DeviceModel::ideal(), 1).expect("it compiles");
    let explained = |last: u8| {
        let frame = FrameBuilder::new().ipv4([10, 0, 0, 1].into(), [192, 0, 2, last].into()).udp(1, 80);
        let sent = program.explain_sent(&DeepKey::of(&frame.build()));
        (sent.rule, sent.leaves, sent.copies.len())
    };
    assert_eq!(explained(1), (Some(RuleId(0)), true, 1));
    assert_eq!(explained(2), (Some(RuleId(1)), false, 0), "nobody hears what does not leave");
    let elsewhere = FrameBuilder::new().ipv4([10, 0, 0, 1].into(), [198, 51, 100, 1].into()).udp(1, 80);
    let sent = program.explain_sent(&DeepKey::of(&elsewhere.build()));
    assert_eq!((sent.flow, sent.rule, sent.leaves), (None, None, true), "the default is for the received");
}

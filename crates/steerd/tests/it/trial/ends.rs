//! Every outcome of a received frame with every number of copies, on every personality. The port counts one
//! outcome for each frame, copies are counted separately, and the counters of the drop rules agree.

use device_model::DeviceModel;
use packet::build::FrameBuilder;
use softnic::{Personality, PortStats};

use super::draw::parse;
use super::rig::Rig;

/// The worker of group g0 gets steered packets, those of g1 and g2 copies, that of g3 sniffed packets.
const WORKERS: u32 = 4;
/// The rules for the frame under test, which is UDP to 10.0.0.9 port 53.
const ENDS: [(&str, &str); 5] = [
    ("dropped by a rule", "[[rules]]\nname = 'end'\nmatch = { dst = '10.0.0.9' }\naction = 'drop'\n"),
    (
        "left to the kernel by a rule",
        "[[rules]]\nname = 'end'\nmatch = { dst = '10.0.0.9' }\naction = 'kernel'\n",
    ),
    ("steered", "[[rules]]\nname = 'end'\nmatch = { dst = '10.0.0.9' }\naction = { steer = 'g0' }\n"),
    ("left to the kernel by default", ""),
    ("dropped by default", ""),
];
const COPIES: [&str; 2] = [
    "[[rules]]\nname = 'copy1'\nmatch = { protocol = 'udp' }\naction = { copy = 'g1' }\n",
    "[[rules]]\nname = 'copy2'\nmatch = { protocol = 'udp', dst_port = 53 }\naction = { copy = 'g2' }\n",
];
/// No copies; copies of all frames; copies of other frames, so that the worker filters out the one under
/// test.
const SNIFFERS: [&str; 3] = [
    "",
    "[[rules]]\nname = 'sniff'\nmatch = { any = true }\naction = { sniff = 'g3' }\n",
    "[[rules]]\nname = 'sniff'\nmatch = { protocol = 'tcp' }\naction = { sniff = 'g3' }\n",
];
/// Frames that fill a worker's queue: TCP, so that they are not copied.
const FILLERS: &str = "[[rules]]\nname = 'fill0'\nmatch = { dst = '10.0.1.0' }\naction = { steer = 'g0' }\n\
    [[rules]]\nname = 'fill1'\nmatch = { dst = '10.0.1.1' }\naction = { steer = 'g1' }\n";

/// One combination.
struct Trial {
    end: usize,
    copies: usize,
    sniffer: usize,
    /// The worker whose queue is full when the frame arrives.
    full: Option<usize>,
}

#[test]
fn every_outcome_is_counted_once_and_copies_separately() {
    for personality in [Personality::Ideal, Personality::Mlx5, Personality::Mlx4] {
        let mut tried = 0;
        for end in 0..ENDS.len() {
            for copies in 0..=COPIES.len() {
                for sniffer in 0..SNIFFERS.len() {
                    for full in [None, Some(0), Some(1)] {
                        tried += u32::from(Trial { end, copies, sniffer, full }.run(personality));
                    }
                }
            }
        }
        // An mlx4 has neither copies nor sniffers: only the five outcomes are tested.
        let expected = if personality == Personality::Mlx4 { 5 * 3 } else { 5 * 3 * 3 * 3 };
        assert_eq!(tried, expected, "combinations on {personality:?}");
    }
}

impl Trial {
    fn policy(&self) -> String {
        let default = if ENDS[self.end].0 == "dropped by default" { "drop" } else { "kernel" };
        let groups: String =
            (0..WORKERS).map(|g| format!("[groups.g{g}]\nworkers = [{g}]\nhash = 'none'\n")).collect();
        let copies = COPIES[..self.copies].concat();
        let rules = [FILLERS, &copies, SNIFFERS[self.sniffer], ENDS[self.end].1].concat();
        format!("version = 1\ndefault = '{default}'\n{groups}{rules}")
    }

    /// Whether the device supports it.
    fn run(&self, personality: Personality) -> bool {
        let profile = DeviceModel::by_name(personality.name()).expect("a profile of its name").in_software();
        let text = self.policy();
        let policy = parse(&text).unwrap_or_else(|bad| panic!("{bad}\n{text}"));
        let Ok(program) = compiler::compile(&policy, &profile, WORKERS as usize) else { return false };
        let mut rig = Rig::new(personality, WORKERS, 1);
        rig.install(&program.into()).expect("what compiles installs");
        if let Some(full) = self.full {
            rig.fill(full, &to([10, 0, 1, full as u8]).tcp(1, 80, 0x10).build());
        }
        let (before, after) = rig.offer(&to([10, 0, 0, 9]).udp(1, 53).build(), self.full);
        let case = format!("{personality:?}: {}, full {:?}\n{text}", ENDS[self.end].0, self.full);
        let change = |of: fn(&PortStats) -> u64| of(&after) - of(&before);
        let ended = change(PortStats::dispositions);
        assert_eq!((change(|port| port.rx_frames), ended), (1, 1), "{case}: {after:?}");
        let end = [
            change(|port| port.flow_dropped),
            change(|port| port.unmatched),
            change(|port| port.delivered),
            change(|port| port.out_of_buffer),
        ];
        let expected = match ENDS[self.end].0 {
            "dropped by a rule" | "dropped by default" => [1, 0, 0, 0],
            "steered" if self.full == Some(0) => [0, 0, 0, 1],
            "steered" => [0, 0, 1, 0],
            _ => [0, 1, 0, 0],
        };
        if personality == Personality::Mlx4 {
            // Without flow tags a worker drops, and the device chooses which one.
            assert_eq!(end.iter().sum::<u64>(), 1, "{case}: {after:?}");
        } else {
            assert_eq!(end, expected, "dropped, to the kernel, delivered, no buffer: {case}");
        }
        let made = self.copies as u64 + u64::from(self.sniffer > 0);
        let lost = u64::from(self.full == Some(1) && self.copies > 0);
        let copies = (change(|port| port.replicated), change(|port| port.copies_lost));
        assert_eq!(copies, (made - lost, lost), "copies delivered and lost: {case}");
        assert_eq!(rig.newly_counted(), end[0], "what drop rules counted: {case}");
        true
    }
}

fn to(dst: [u8; 4]) -> FrameBuilder {
    FrameBuilder::new().ipv4([10, 0, 0, 1].into(), dst.into())
}

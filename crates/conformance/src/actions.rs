//! The actions of `ibv_create_flow`: TAG, DROP, HANDLE. COUNT has a file of its own.

use verbs::{ActionSpec, EspAction, EspFlags, FlowAction, FlowAttr, FlowKind, FlowTag};

use crate::bench::udp;
use crate::create_flow::refuse;
use crate::endpoints::Receiver;
use crate::filters::any_ipv4;
use crate::{Answer, Bench, Case, Expected, Failure, Needs, Outcome, Verb};

const SPEC: &str = "ibv_flow_spec.type";

pub(crate) fn cases() -> Vec<Case> {
    let none =
        Expected::WORKS.mlx4(Answer::INVALID).because("kernel mlx4 main.c, `parse_flow_attr`: no actions");
    let case = |row, run| Case::new(Verb::CreateFlow, row, run).needs(Needs::Frames).expect(none);
    let object = |row, run| Case::new(Verb::CreateFlow, row, run);
    let handle = Expected::all(Answer::UNSUPPORTED).because(
        "ESP offload was taken out of the kernel's mlx5; mlx4 never had it: ibv_create_flow_action_esp",
    );
    let forgotten = none.mlx5(Answer::Ignored).because("kernel mlx5 fs.c, `create_leftovers_rule`, `create_sniffer_rule`: specs are not looked at; mlx4 main.c: no actions");
    let (tag, field) = ("verbs::ActionSpec::Tag", "ibv_flow_spec_action_tag.tag_id");
    vec![
        case([SPEC, "IBV_FLOW_SPEC_ACTION_TAG", tag, "completions have the value"], tags::<1>),
        case([field, "1", tag, "completions have the value"], tags::<1>),
        case([field, "2^24 - 1", tag, "completions have the value"], tags::<0x00ff_ffff>),
        object([field, "2^24", tag, "above the largest tag of mlx5"], tag_too_large).expect(
            Expected::WORKS
                .mlx5(Answer::INVALID)
                .mlx4(Answer::INVALID)
                .because("kernel mlx5 fs.c, `parse_flow_attr`: tag_id >= BIT(24); mlx4 main.c: no actions"),
        ),
        case(
            [SPEC, "IBV_FLOW_SPEC_ACTION_TAG on ALL_DEFAULT", tag, "completions have the value"],
            tag_on_default,
        )
        .expect(forgotten),
        case(
            [SPEC, "IBV_FLOW_SPEC_ACTION_TAG on SNIFFER", tag, "completions have the value"],
            tag_on_sniffer,
        )
        .expect(forgotten),
        case(
            [
                SPEC,
                "IBV_FLOW_SPEC_ACTION_DROP",
                "verbs::ActionSpec::Drop",
                "matching packets are dropped, others are received",
            ],
            drops,
        ),
        case(
            [
                SPEC,
                "IBV_FLOW_SPEC_ACTION_DROP on ALL_DEFAULT",
                "verbs::ActionSpec::Drop",
                "packets that no other flow matches are dropped",
            ],
            drop_on_default,
        )
        .expect(forgotten),
        object(
            [
                SPEC,
                "IBV_FLOW_SPEC_ACTION_HANDLE",
                "verbs::ActionSpec::Handle",
                "no action can be created, so no flow can refer to one",
            ],
            esp_action,
        )
        .expect(handle),
        object(
            [
                "ibv_flow_spec_action_handle.action",
                "an ESP action",
                "verbs::FlowAction::esp",
                "refused, as by current kernels",
            ],
            esp_action,
        )
        .expect(handle),
    ]
}

fn tags<const TAG: u32>(bench: &Bench<'_>) -> Outcome {
    let mut receiver = Receiver::new(bench)?;
    let _flow = receiver.flow(&bench.flow().action(ActionSpec::Tag(FlowTag(TAG))))?;
    tag_seen(bench, &mut receiver, TAG)
}

/// Whether a packet comes with this tag; ignored if it comes without.
fn tag_seen(bench: &Bench<'_>, receiver: &mut Receiver, tag: u32) -> Outcome {
    bench.deliver([udp(1, 2)]);
    let packets = receiver.drain()?;
    ensure!(packets.len() == 1, "{} packets of 1", packets.len());
    match packets[0].tag {
        Some(seen) if seen == tag => Ok(()),
        Some(0) => Err(Failure::Ignored),
        other => Err(Failure::Differs(format!("{other:?} instead of {tag}"))),
    }
}

fn tag_too_large(bench: &Bench<'_>) -> Outcome {
    refuse(bench, bench.flow().action(ActionSpec::Tag(FlowTag(1 << 24))))
}

fn tag_on(bench: &Bench<'_>, kind: FlowKind) -> Outcome {
    let mut receiver = Receiver::new(bench)?;
    let _flow = receiver.flow(&FlowAttr::new(kind, bench.port).action(ActionSpec::Tag(FlowTag(5))))?;
    tag_seen(bench, &mut receiver, 5)
}

fn tag_on_default(bench: &Bench<'_>) -> Outcome {
    tag_on(bench, FlowKind::AllDefault)
}

fn tag_on_sniffer(bench: &Bench<'_>) -> Outcome {
    tag_on(bench, FlowKind::Sniffer)
}

fn drops(bench: &Bench<'_>) -> Outcome {
    let mut receiver = Receiver::new(bench)?;
    let _drop = receiver.flow(&bench.flow().spec(any_ipv4()).action(ActionSpec::Drop))?;
    let _rest = receiver.flow(&bench.flow().priority(1))?;
    let other = crate::bench::ipv6().udp(1, 2).build();
    bench.deliver([udp(1, 2), other.clone()]);
    let came = receiver.frames()?;
    ensure!(came == [other], "{} frames came, or others", came.len());
    Ok(())
}

fn drop_on_default(bench: &Bench<'_>) -> Outcome {
    let mut receiver = Receiver::new(bench)?;
    let _flow = receiver.flow(&FlowAttr::new(FlowKind::AllDefault, bench.port).action(ActionSpec::Drop))?;
    bench.deliver([udp(1, 2)]);
    match receiver.frames()?.len() {
        0 => Ok(()),
        1 => Err(Failure::Ignored),
        other => Err(Failure::Differs(format!("{other} packets"))),
    }
}

fn esp_action(bench: &Bench<'_>) -> Outcome {
    let action = FlowAction::esp(
        &bench.context,
        &EspAction {
            spi: 1,
            seq: 0,
            tfc_pad_bytes: 0,
            flags: EspFlags::FULL_OFFLOAD,
            hard_limit_packets: 0,
            esn: None,
            iv: 1,
            salt: 2,
            icv_bytes: 16,
            key: vec![0; 16],
        },
    )?;
    refuse(bench, bench.flow().spec(any_ipv4()).action(ActionSpec::Handle(action)))
}

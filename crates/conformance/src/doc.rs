//! Generates docs/generated/conformance.md from the cases and from the names of verbs.h that the safe crate
//! does not offer.

use std::collections::HashMap;
use std::fmt::Write;

use softnic::Personality;

use crate::{Case, Verb, cases, libmlx5};

const HEAD: &str = "\
# Conformance

<!-- Written by `cargo run -p conformance -- --write-docs`; a test fails when it is stale. -->

Every field and every enum value of `ibv_alloc_parent_domain`, `ibv_create_qp_ex`, `ibv_create_cq_ex`, `ibv_create_flow`
and their companions: the item of the safe crate, the behaviour that the suite checks, and the answer of each kind of
device. `make conformance` runs every row on the soft NIC's three personalities, `STEERD_TEST_DEVICE=NAME make conformance`
on a device, and `steerd devices --probe NAME` the rows that do not affect other users of the device (marked with •). A test
compares the list of names with `/usr/include/infiniband/verbs.h`.

*works*: accepted, and the behaviour was observed. *ignored*: accepted, without any effect. *refused*: with this errno,
according to the source in the last column. *differs*: accepted, and something else was done, or refused without an errno; the
source says what. *on a device*: where a real mlx5 device differs from the soft NIC that imitates
it, or depends on a firmware capability that no verb reports.

The columns of mlx5 and mlx4 come from the sources in the last column. They are not measured: the suite has not been run on
such a device so far. *inferred* marks a conclusion that a source supports but does not state. A row that a device
contradicts is an error in the soft NIC's personality and in the device model of that name.

The column libmlx5 is about rdma-core's unmodified mlx5 provider over a model of the kernel and of the device (`softnic exec
--method mlx5`). *run*: the row was run there, with this answer. What the provider checks is its own answer; what kernel and firmware check is that of the model, written after their sources. *not
modelled*: the model refuses it: datagrams and the device's clock. *read*: not run; the answer of column mlx5 is read from the
source. *inferred*: the same, and no source states it. The answers are recorded by `make conformance-libmlx5`, with rdma-core 44; a test runs the rows again and compares.
";

const CORRECTED: &str = "
## Rows that rdma-core's own provider corrected

The soft NIC's personality mlx5 did otherwise until these rows were run on the provider itself. What the provider does with a
completion or a call is the same over a device, so the last column is what a program would have met there.

| row | soft NIC before | now, as the provider | on a device |
|---|---|---|---|
| `ibv_wc_read_wc_flags` through a work queue | `IBV_WC_IP_CSUM_OK` for correct checksums | never set; through a raw packet queue pair it is | every packet of a work queue counts as not verified |
| `ibv_wc_read_qp_num` of a received packet | the number of the queue | the flow tag, 0 without one | who looks for the queue by this number finds none, or another one |
| `ibv_wc_read_vendor_err` without an error | 0 | a byte of the timestamp | who takes it for an error without looking at the status finds one in nearly every packet |
| an overrun of a completion queue | with the first completion more than `cqe` | one later: the queue has a power of two, and `cqe` is one less (the provider's ring; the device's part is inferred) | the queue fails one packet later |
| `ibv_parent_domain_init_attr.alloc` returns NULL for a completion queue or a queue pair | ENOMEM | NULL, and errno as it was | an errno of an earlier call is reported as this one's |
| `ibv_req_notify_cq` while completions are not polled | no event | an event at once | one wake-up more per sleep of a thread that arms before it polls |
| `ibv_wr_complete` | one function for all states | another one in RTS than before; the earlier one refuses every batch with EINVAL | a program that keeps the function from before RTS, as the safe crate did, sends no batch |
";

/// The whole document.
pub fn markdown() -> String {
    let mut text = HEAD.to_owned();
    let (all, answers) = (cases(), libmlx5::answers());
    for verb in Verb::ALL {
        let rows: Vec<&Case> = all.iter().filter(|case| case.verb == verb).collect();
        let _ = write!(
            text,
            "\n## {verb}\n\n| field | value | offered by | behaviour | ideal | mlx5 | libmlx5 | mlx4 | source |\n|---|---|---|---|---|---|---|---|---|\n"
        );
        rows.iter().for_each(|case| row(&mut text, case, &answers));
        for absent in ABSENT.iter().filter(|absent| absent.verb == verb) {
            let _ =
                writeln!(text, "| `{}` | | not offered | {} | - | - | - | - | |", absent.name, absent.why);
        }
    }
    let _ = write!(text, "\n{} cases.\n", all.len());
    text.push_str(CORRECTED);
    text
}

fn row(text: &mut String, case: &Case, answers: &HashMap<&str, &str>) {
    let [ideal, mlx5, mlx4] = Personality::ALL.map(|personality| case.expected.of(personality));
    let mlx5 = match case.expected.mlx5_varies {
        "" => mlx5.to_string(),
        by => format!("{mlx5}; on a device: {by}"),
    };
    let probed = if case.needs == crate::Needs::Objects { "• " } else { "" };
    let _ = writeln!(
        text,
        "| `{}` | {} | `{}` | {probed}{} | {ideal} | {mlx5} | {} | {mlx4} | {} |",
        case.field,
        value(case.value),
        case.offered,
        case.shows,
        libmlx5::column(case, answers),
        case.expected.source,
    );
}

/// Constants are formatted as code.
fn value(value: &str) -> String {
    let part = |part: &str| {
        if part.starts_with("IBV_") { format!("`{part}`") } else { part.replace('|', "\\|") }
    };
    value.split(' ').map(part).collect::<Vec<_>>().join(" ")
}

/// A name that is not offered.
#[derive(Clone, Copy, Debug)]
pub struct Absent {
    /// The verb it belongs to.
    pub verb: Verb,
    /// `structure.member`, a function, or a constant.
    pub name: &'static str,
    /// The reason.
    pub why: &'static str,
}

const XRC: &str = "XRC transports only: ibv_create_qp_ex(3) has it for IBV_QPT_XRC_RECV";
const MEMORY: &str = "connected transports only: the table of ibv_wr_post(3) gives raw packets sends and segmentation; the rows of its flag show what a device answers";
const RESERVED: &str = "reserved: the first bit without a meaning";
const ONE: &str = "only one value exists, and the safe crate always sets it";
const ZERO: &str = "no bits are defined; always 0";
const SIZES: &str = "computed from the specs: `FlowAttr` sets it";

/// All of them.
pub const ABSENT: &[Absent] = &[
    absent(
        Verb::AllocParentDomain,
        "IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC",
        "for confidential guests, since rdma-core 64: queue memory comes from the worker's own arena, which is never shared with the host",
    ),
    absent(Verb::CreateQpEx, "ibv_qp_init_attr_ex.xrcd", XRC),
    absent(Verb::CreateQpEx, "IBV_QP_INIT_ATTR_XRCD", XRC),
    absent(Verb::WrPost, "ibv_qp_ex.wr_atomic_cmp_swp", MEMORY),
    absent(Verb::WrPost, "ibv_qp_ex.wr_atomic_fetch_add", MEMORY),
    absent(Verb::WrPost, "ibv_qp_ex.wr_bind_mw", MEMORY),
    absent(Verb::WrPost, "ibv_qp_ex.wr_local_inv", MEMORY),
    absent(Verb::WrPost, "ibv_qp_ex.wr_rdma_read", MEMORY),
    absent(Verb::WrPost, "ibv_qp_ex.wr_rdma_write", MEMORY),
    absent(Verb::WrPost, "ibv_qp_ex.wr_rdma_write_imm", MEMORY),
    absent(Verb::WrPost, "ibv_qp_ex.wr_send_imm", MEMORY),
    absent(Verb::WrPost, "ibv_qp_ex.wr_send_inv", MEMORY),
    absent(Verb::WrPost, "ibv_qp_ex.wr_atomic_write", MEMORY),
    absent(Verb::WrPost, "ibv_qp_ex.wr_flush", MEMORY),
    absent(Verb::WrPost, "ibv_qp_ex.wr_set_ud_addr", "datagrams only: a raw packet contains its addresses"),
    absent(Verb::WrPost, "ibv_qp_ex.wr_set_xrc_srqn", XRC),
    absent(
        Verb::WrPost,
        "IBV_SEND_FENCE",
        "RC only: ibv_post_send(3), \"valid only for QPs with Transport Service Type RC\"",
    ),
    absent(
        Verb::WrPost,
        "IBV_SEND_SOLICITED",
        "RC, UC and UD only: ibv_post_send(3), \"valid only for Send and RDMA Write with immediate\": a frame has no such bit",
    ),
    absent(Verb::RxHash, "ibv_rwq_ind_table_init_attr.comp_mask", ZERO),
    absent(Verb::RxHash, "IBV_CREATE_IND_TABLE_RESERVED", RESERVED),
    absent(Verb::CreateWq, "IBV_WQ_INIT_ATTR_RESERVED", RESERVED),
    absent(Verb::CreateWq, "IBV_WQ_FLAGS_RESERVED", RESERVED),
    absent(Verb::CreateWq, "IBV_WQ_ATTR_RESERVED", RESERVED),
    absent(
        Verb::CreateWq,
        "ibv_wq_attr.curr_wq_state",
        "a check of the caller's assumption; `WorkQueue` tracks its state",
    ),
    absent(
        Verb::CreateWq,
        "IBV_WQ_ATTR_CURR_STATE",
        "a check of the caller's assumption; `WorkQueue` tracks its state",
    ),
    absent(Verb::CreateWq, "IBV_WQS_UNKNOWN", "returned by queries of a queue pair's queues, never set"),
    absent(Verb::CreateWq, "ibv_wq_init_attr.wq_type", ONE),
    absent(Verb::CreateWq, "IBV_WQT_RQ", ONE),
    absent(Verb::CreateCqEx, "IBV_CQ_ATTR_RESERVED", RESERVED),
    absent(Verb::CreateCqEx, "ibv_modify_cq_attr.attr_mask", ONE),
    absent(Verb::PollCq, "IBV_VALUES_MASK_RESERVED", RESERVED),
    absent(Verb::CreateFlow, "ibv_flow_attr.comp_mask", ZERO),
    absent(Verb::CreateFlow, "ibv_flow_attr.size", SIZES),
    absent(Verb::CreateFlow, "ibv_flow_spec_action_tag.type", SIZES),
    absent(Verb::CreateFlow, "ibv_flow_spec_action_tag.size", SIZES),
    absent(Verb::CreateFlow, "ibv_flow_spec_action_drop.type", SIZES),
    absent(Verb::CreateFlow, "ibv_flow_spec_action_drop.size", SIZES),
    absent(Verb::CreateFlow, "ibv_flow_spec_action_handle.type", SIZES),
    absent(Verb::CreateFlow, "ibv_flow_spec_action_handle.size", SIZES),
    absent(Verb::CreateFlow, "ibv_flow_spec_counter_action.type", SIZES),
    absent(Verb::CreateFlow, "ibv_flow_spec_counter_action.size", SIZES),
    absent(Verb::Counters, "ibv_counters_init_attr.comp_mask", ZERO),
    absent(Verb::Counters, "ibv_counter_attach_attr.comp_mask", ZERO),
];

const fn absent(verb: Verb, name: &'static str, why: &'static str) -> Absent {
    Absent { verb, name, why }
}

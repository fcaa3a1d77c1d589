//! `steerd flows`: the flows of the program that the running daemon has installed, with their counts.

use crate::api::model::{Flow, Flows};
use crate::cli::FlowsArgs;
use crate::commands::{Error, client};
use crate::terminal::numbers::number;
use crate::terminal::output;
use crate::terminal::table::Grid;

pub(crate) fn run(args: &FlowsArgs) -> Result<(), Error> {
    let client = client::connect(&args.api)?;
    let path = target(args.rule.as_deref());
    if args.output.is_json() {
        let answer: serde_json::Value = client.get(&path)?;
        return Ok(output::print_json(&answer)?);
    }
    Ok(output::print(&text(&client.get(&path)?))?)
}

/// The target of the request: the flows of all rules, or of one.
fn target(rule: Option<&str>) -> String {
    match rule {
        Some(rule) => format!("/v1/flows?rule={}", escaped(rule)),
        None => "/v1/flows".to_owned(),
    }
}

/// Percent-encoded but for the unreserved characters (RFC 3986, 2.1 and 2.3): the API takes no escapes.
fn escaped(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    name.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

fn text(flows: &Flows) -> String {
    let mut grid = Grid::new(&["prio", "rule", "packets", "action", "match"]);
    for flow in &flows.flows {
        grid.row(vec![
            flow.priority.to_string(),
            rules(flow),
            packets(flow),
            action(flow),
            if flow.specs.is_empty() { "any".to_owned() } else { flow.specs.clone() },
        ]);
    }
    let mut text = grid.text();
    let more = flows.count - flows.flows.len().min(flows.count);
    if more > 0 {
        text.push_str(&format!("and {} more (--rule NAME shows those of one rule)\n", number(more as u64)));
    }
    if flows.flows.iter().any(|flow| ["rule", "rules"].contains(&flow.counted.as_str())) {
        text.push_str("* of all flows of the rule, or of the rules\n");
    }
    text
}

/// The rules of a flow that are named; the others are counted.
const RULES_SHOWN: usize = 3;

/// `web`, or `web, dns and 4 more` where a worker compares the packets with several rules.
fn rules(flow: &Flow) -> String {
    // A daemon of an earlier release does not list them.
    if flow.rules.is_empty() {
        return flow.rule.clone();
    }
    let shown = flow.rules.len().min(RULES_SHOWN);
    let more = match flow.rule_count.saturating_sub(shown) {
        0 => String::new(),
        more => format!(" and {} more", number(more as u64)),
    };
    format!("{}{more}", flow.rules[..shown].join(", "))
}

fn packets(flow: &Flow) -> String {
    match flow.counted.as_str() {
        "flow" => number(flow.packets),
        "rule" | "rules" => format!("{} *", number(flow.packets)),
        _ => "-".to_owned(),
    }
}

/// `steer to web (queue 3, v4-udp)`
fn action(flow: &Flow) -> String {
    match (&flow.group, flow.queue, &flow.variant) {
        (Some(group), Some(queue), Some(variant)) => {
            format!("{} to {group} (q{queue} {variant})", flow.action)
        }
        _ => flow.action.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::request::{Call, call};

    #[test]
    fn the_api_accepts_every_target() {
        for rule in [None, Some("web-1.a_b"), Some("web~extensions"), Some("default")] {
            let target = target(rule);
            let (path, query) =
                target.split_once('?').map_or((&*target, None), |(path, query)| (path, Some(query)));
            let accepted = call("GET", path, query);
            assert_eq!(accepted, Ok(Call::Flows { rule }), "{target}");
        }
    }

    #[test]
    fn names_are_escaped_for_the_query() {
        assert_eq!(escaped("web-1.a_b"), "web-1.a_b");
        assert_eq!(escaped("a b&c=ü"), "a%20b%26c%3D%C3%BC");
    }
}

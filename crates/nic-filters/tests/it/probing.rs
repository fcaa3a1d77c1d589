//! Models that are found by trying, compared with those of the NICs.

use nic_filters::{FilterModel, FilterOrder, MaskRule, ModelledNic, NicFilters, probe};
use packet::Field;

use crate::support::{QUEUES, model, ternary};

/// The model as probing can find it: without an order, with one row for each field that a kind has.
fn visible(model: &FilterModel, found: &FilterModel) -> FilterModel {
    let mut visible = FilterModel { order: FilterOrder::None, ..model.clone() };
    (visible.name, visible.drivers) = (found.name.clone(), found.drivers.clone());
    (visible.source, visible.filters) = (found.source.clone(), found.filters);
    visible.kinds.sort();
    visible.fields.sort_by(|a, b| a.field.cmp(&b.field));
    visible.fields.iter_mut().for_each(|row| row.source.clone_from(&found.source));
    visible
}

#[test]
fn probing_finds_the_model_of_a_nic_and_leaves_no_filter() {
    for name in FilterModel::names().into_iter().chain(["ternary"]) {
        let model = if name == "ternary" { ternary() } else { model(name) };
        let mut nic = ModelledNic::new(model.clone(), QUEUES);
        let mut found = probe(&mut nic).expect("an empty table");
        assert!(nic.filters().is_empty() && nic.contexts().is_empty(), "{name}");
        found.fields.sort_by(|a, b| a.field.cmp(&b.field));
        let mut expected = visible(&model, &found);
        // A destination address beside IP alone is no row that can be found without filters of Ethernet.
        if !model.kinds.contains(&nic_filters::FilterKind::Ether) {
            expected.fields.retain(|row| row.field != "dst_mac");
            found.fields.retain(|row| row.field != "dst_mac");
        }
        assert_eq!(found, expected, "{name}");
    }
}

#[test]
fn a_field_that_is_ignored_is_not_in_the_model() {
    let mut nic = ModelledNic::new(model("mlx5"), QUEUES);
    nic.ignore(Field::SrcPort);
    let found = probe(&mut nic).expect("an empty table");
    assert!(!found.fields.iter().any(|row| row.field == "src_port"));
    assert!(found.fields.iter().any(|row| row.field == "dst_port" && row.mask == MaskRule::Any));
}

#[test]
fn a_table_in_use_is_not_probed() {
    let mut nic = ModelledNic::new(model("mlx5"), QUEUES);
    let filter = nic_filters::Filter {
        matches: nic_filters::FilterMatch::new(nic_filters::FilterKind::Udp4, []),
        destination: nic_filters::Destination::Drop,
    };
    nic.place(1, Some(filter));
    let refused = probe(&mut nic).expect_err("the answers would be others").to_string();
    assert!(refused.contains("location 1: udp4: drop"), "{refused}");
    assert_eq!(nic.list().expect("listed").len(), 1);
}

#[test]
fn a_nic_that_takes_no_filter_has_no_model() {
    let mut nic = ModelledNic::new(FilterModel { kinds: Vec::new(), ..model("mlx5") }, QUEUES);
    let refused = probe(&mut nic).expect_err("it has no kinds of filters").to_string();
    assert!(refused.contains("inserting a filter of any kind failed"), "{refused}");
}

#[test]
fn an_error_that_is_no_refusal_ends_the_search_and_leaves_no_filter() {
    let count = {
        let mut nic = ModelledNic::new(model("mlx5"), QUEUES);
        nic.fail([]);
        probe(&mut nic).expect("an empty table");
        nic.calls()
    };
    for failing in 0..count {
        let mut nic = ModelledNic::new(model("mlx5"), QUEUES);
        nic.fail([failing]);
        let error = probe(&mut nic).expect_err("a call fails");
        // A removal that fails leaves one filter.
        let left = usize::from(error.operation.starts_with("removing the filter"));
        assert_eq!(nic.filters().len(), left, "call {failing}: {error}");
    }
}

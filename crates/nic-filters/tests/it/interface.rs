//! The kernel's own answers, on an interface without filters.

use nic_filters::{CarveError, Carving, FilterModel, InterfaceFilters, Ledger, NicFilters};

use crate::support::MemoryStore;

#[test]
fn an_interface_without_filters_is_refused_by_name_with_the_remedy() {
    let nic = InterfaceFilters::open("lo").expect("every namespace has it");
    let model = FilterModel::by_driver(&nic.driver());
    assert_eq!(model.name, "cautious");
    let refused =
        Carving::open(nic, MemoryStore::default(), model, Ledger::default()).expect_err("it has none");
    let text = refused.to_string();
    assert!(text.starts_with("lo (driver ") && text.contains("ntuple on"), "{text}");
    assert!(matches!(refused, CarveError::Nic(_)));
}

#[test]
fn a_context_of_an_interface_without_rss_does_not_exist() {
    let nic = InterfaceFilters::open("lo").expect("every namespace has it");
    assert_eq!(nic.context_table(1).expect("an answer"), None);
    assert!(InterfaceFilters::open("no-such-interface").is_err());
}

//! Finding and opening devices, against a soft NIC: every refusal is one line with a remedy.

use std::sync::Arc;

use control::{ControlError, Controller, Device, DeviceSelector, Known, Model};
use device_model::DeviceModel;
use packet::MacAddr;
use softnic::{Drive, Personality, PortConfig, SoftNicConfig};
use softnic_verbs::SoftNic;
use wire::{Burst, NullWire, TransmitError, Wire, WireState};

/// A wire whose medium is gone.
struct DownWire;

impl Wire for DownWire {
    fn receive<'w>(&'w mut self, _: &mut Burst<'w>) {}

    fn transmit(&mut self, _: &[u8]) -> Result<(), TransmitError> {
        Ok(())
    }

    fn flush(&mut self) {}

    fn state(&self) -> WireState {
        WireState::Down
    }

    fn describe(&self) -> String {
        "down".to_owned()
    }

    fn mac(&self) -> MacAddr {
        MacAddr([2, 0, 0, 0, 0, 1])
    }

    fn mtu_bytes(&self) -> u32 {
        1500
    }
}

fn nic(name: &str, ports: usize) -> SoftNic {
    over(name, (0..ports).map(|_| Box::new(NullWire) as Box<dyn Wire>).collect())
}

fn over(name: &str, wires: Vec<Box<dyn Wire>>) -> SoftNic {
    imitating(name, Personality::Ideal, wires)
}

fn imitating(name: &str, personality: Personality, wires: Vec<Box<dyn Wire>>) -> SoftNic {
    let ports = wires.into_iter().map(|wire| PortConfig { wire, mtu_bytes: 1500 }).collect();
    SoftNic::create(SoftNicConfig { name: name.to_owned(), personality, ports, drive: Drive::Manual })
        .expect("a soft NIC")
}

#[test]
fn a_soft_nic_is_listed_opened_and_described() {
    let nic = nic("soft7", 2);
    let list = Device::list(Some(&nic)).expect("a list");
    assert_eq!(list.iter().map(|device| device.name.as_str()).collect::<Vec<_>>(), ["soft7"]);
    let device = Device::open(&DeviceSelector::default(), Some(&nic)).expect("the only device");
    assert_eq!(device.name(), "soft7");
    assert_eq!(device.attributes().physical_ports, 2);
    assert_eq!(device.model().known, Known::Provider);
    let profile = device.profile(2);
    assert_eq!(profile.name, "soft7 (ideal)");
    assert!(profile.priorities >= 16 && profile.max_table >= 128, "{profile:?}");
    assert_eq!(profile.max_queues, Some(device.attributes().max_qp - 3), "two workers' and the controller's");
    assert!(device.check_port(1).is_ok() && device.check_port(2).is_ok());
}

#[test]
fn a_wrong_name_or_port_is_answered_with_the_right_ones() {
    let nic = nic("soft8", 2);
    let open = |name: &str| Device::open(&DeviceSelector::named(name), Some(&nic));
    let error = open("mlx5_0").err().expect("no such device").to_string();
    assert_eq!(error, "no device called `mlx5_0`; there is soft8");
    let device = open("soft8").expect("opens");
    for port in [0, 3] {
        let error = device.check_port(port).expect_err("no such port").to_string();
        assert_eq!(error, format!("device soft8 has no port {port}; its ports are 1 to 2"));
    }
}

#[test]
fn a_port_without_link_is_said_with_its_remedy() {
    let nic = over("soft11", vec![Box::new(NullWire), Box::new(DownWire)]);
    let device = Device::open(&DeviceSelector::default(), Some(&nic)).expect("opens");
    assert!(device.check_port(1).is_ok());
    let error = Controller::new(&device, vec![1, 2], Vec::new()).err().expect("port 2 is down").to_string();
    assert_eq!(
        error,
        "port 2 of soft11 is down: bring the link up (ip link set dev IFACE up) and check the cable"
    );
}

#[test]
fn a_controller_without_workers_or_with_a_missing_port_is_refused() {
    let nic = nic("soft9", 1);
    let device = Device::open(&DeviceSelector::named("soft9"), Some(&nic)).expect("opens");
    assert!(matches!(
        Controller::new(&device, vec![1], Vec::new()),
        Err(ControlError::NothingToSteer { workers: 0, ports: 1 })
    ));
    assert!(matches!(
        Controller::new(&device, vec![2], Vec::new()),
        Err(ControlError::NoSuchPort { port: 2, ports: 1, .. })
    ));
}

#[test]
fn an_opened_device_outlives_its_list_and_a_stopped_nic() {
    let nic = nic("soft10", 1);
    let device = Device::open(&DeviceSelector::default(), Some(&nic)).expect("opens");
    nic.stop();
    assert_eq!(device.context().name(), "soft10");
    assert_eq!(Arc::strong_count(device.context()), 1);
    drop(nic);
    let again =
        Device::of(Arc::clone(device.context()), device.model().clone()).expect("it answers as before");
    assert_eq!(again.attributes(), device.attributes());
    assert!(matches!(again.check_port(2), Err(ControlError::NoSuchPort { port: 2, ports: 1, .. })));
}

/// A soft NIC like an mlx5 of a kernel with so many priorities.
fn mlx5_of(name: &str, priorities: u32) -> SoftNic {
    let folder = tempfile::tempdir().expect("folder");
    let text = include_str!("../../../device-model/models/mlx5.toml")
        .replace("priorities = 16", &format!("priorities = {priorities}"))
        .replace("needs_net_raw = true", "needs_net_raw = false");
    let file = folder.path().join("nic.toml");
    std::fs::write(&file, text).expect("written");
    let personality = file.to_str().expect("UTF-8").parse().expect("a model");
    imitating(name, personality, vec![Box::new(NullWire)])
}

#[test]
fn a_kernel_with_fewer_priorities_is_recognised() {
    let opened = |nic: &SoftNic| {
        let device = Device::open(&DeviceSelector::default(), Some(nic)).expect("opens");
        device.with_model(Model::named(DeviceModel::mlx5()))
    };
    let nic = mlx5_of("soft12", 8);
    let mut device = opened(&nic);
    let fewer = device.try_priorities(1).expect("tried").expect("the model has 16");
    assert_eq!((fewer.of_model, fewer.found), (16, 8));
    assert_eq!((device.profile(1).priorities, device.limits().priorities), (8, 8));
    let warning = fewer.to_string();
    for part in ["soft12 has 8 flow priorities", "its model (mlx5) 16", "priorities = 8"] {
        assert!(warning.contains(part), "no {part:?} in {warning}");
    }
    assert_eq!(device.try_priorities(1).expect("tried"), None, "once it is known");
    let nic = mlx5_of("soft13", 16);
    assert_eq!(opened(&nic).try_priorities(1).expect("tried"), None);
    let untried = opened(&nic).try_priorities(7).expect_err("there is no such port");
    assert_eq!(untried.of_model, 16);
    assert!(untried.to_string().starts_with("the flow priorities of soft13 were not found"), "{untried}");
}

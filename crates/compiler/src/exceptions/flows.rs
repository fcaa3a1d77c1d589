//! All cubes that become flows, to find those that an exception meets. Called by `exceptions`.

use super::super::cube::{Cube, Image};
use super::super::shape::{ByMask, Shape};

/// All of them, those included that were cut.
#[derive(Default)]
pub(super) struct Flows {
    pub(super) list: Vec<Flow>,
    shapes: Vec<Shape>,
    shape_of: ByMask<Image, usize>,
}

pub(super) struct Flow {
    pub(super) rule: usize,
    pub(super) cube: Cube,
    /// Not cut into pieces.
    pub(super) lives: bool,
}

impl Flows {
    pub(super) fn add(&mut self, rule: usize, cube: Cube) {
        let shape = *self.shape_of.entry(cube.mask).or_insert_with(|| {
            self.shapes.push(Shape::new(&cube, true));
            self.shapes.len() - 1
        });
        self.shapes[shape].add(&cube, self.list.len(), 0);
        self.list.push(Flow { rule, cube, lives: true });
    }

    /// In an order that depends on nothing but what was added.
    pub(super) fn that_meet(&mut self, cube: &Cube) -> Vec<usize> {
        let mut met = Vec::new();
        for shape in self.shapes.iter_mut().filter(|shape| shape.may_meet(cube)) {
            shape.entries_that_meet(cube, 0, &mut met);
        }
        let mut met: Vec<usize> = met.into_iter().map(|(flow, _)| flow).collect();
        met.retain(|flow| self.list[*flow].lives);
        met
    }

    pub(super) fn some_meets(&mut self, cube: &Cube) -> bool {
        let mut met = Vec::new();
        let list = &self.list;
        self.shapes.iter_mut().filter(|shape| shape.may_meet(cube)).any(|shape| {
            shape.entries_that_meet(cube, 0, &mut met);
            met.drain(..).any(|(flow, _)| list[flow].lives)
        })
    }
}

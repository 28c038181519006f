//! A device may only judge where it agrees with the host, and some samples of a batch stand for
//! all.

use super::*;
use crate::Template;
use crate::reference::{Reference, ReferenceRunner};
use overdrive_cpu::CpuBackend;
use overdrive_ir::{
    BackendError, Buffer, Builder, Executable, Init, Target, Tensor, TensorType, WithoutKernels,
};
use std::sync::Arc;

/// The CPU, said to be a device with units for f64, some of whose results are off by a share.
struct Device {
    cpu: CpuBackend,
    target: WithoutKernels,
    off: f64,
}

impl Device {
    fn off_by(off: f64) -> Self {
        let cpu = CpuBackend::new(Some(1)).unwrap();
        let mut description = cpu.description().clone();
        description.peaks.flops_per_second.insert(DType::F64, 1e15);
        Self { cpu, target: WithoutKernels(description), off }
    }
}

impl Backend for Device {
    fn name(&self) -> &str {
        "device"
    }

    fn target(&self) -> &dyn Target {
        &self.target
    }

    fn compile(
        &self,
        graph: &Graph,
        mode: Mode,
        tuning: &Tuning,
    ) -> Result<Arc<dyn Executable>, BackendError> {
        self.cpu.compile(graph, mode, tuning)
    }

    fn upload(&self, tensor: &Tensor) -> Result<Buffer, BackendError> {
        self.cpu.upload(tensor)
    }

    fn download(&self, buffer: &Buffer) -> Result<Tensor, BackendError> {
        let right = self.cpu.download(buffer)?;
        let values: Vec<f64> = right.to_f64().iter().map(|x| x * (1.0 + self.off)).collect();
        Ok(Tensor::from_f64(right.ty().dtype, right.ty().shape.clone(), &values))
    }

    fn output(&self, ty: &TensorType) -> Result<Buffer, BackendError> {
        self.cpu.output(ty)
    }

    fn write(&self, buffer: &mut Buffer, tensor: &Tensor) -> Result<(), BackendError> {
        self.cpu.write(buffer, tensor)
    }
}

/// `x w` of a model with so many rows; 2 * 48 * 32 FLOPs a row.
fn model(rows: usize) -> Graph {
    let b = Builder::new("model");
    let x = b.input("x", TensorType::new(DType::F32, [rows, 48]));
    let w = b.state("w", TensorType::new(DType::F32, [48, 32]), Init::Normal { std: 1.0, seed: 3 });
    b.output("y", x.matmul(w));
    b.finish().unwrap()
}

#[test]
fn a_device_judges_only_where_it_agrees_with_the_host() {
    let host = CpuBackend::new(Some(1)).unwrap();
    let (large, probe) = (model(1 << 26), model(2));
    let inputs = [Tensor::from_f64(DType::F32, [2, 48], &[0.5; 96])];
    for (off, agrees) in [(0.0, true), (1e-12, true), (1e-7, false), (f64::NAN, false)] {
        let device = Device::off_by(off);
        let chosen = Rc::new(Chosen {
            host: &host,
            device: Some((&device, &probe)),
            workloads: 1,
            held: OnceCell::new(),
        });
        assert!(chosen.to_string().contains("in f64 on device"), "{chosen}");
        let found = Reference::new(&probe, ReferenceRunner::On(chosen)).outputs(&inputs);
        assert_eq!(found.is_ok(), agrees, "off by {off}");
        if let Err(failure) = found {
            assert!(
                failure.reason.contains("`y`") && failure.reason.contains("device"),
                "{failure:?}"
            );
        }
    }
    let device = Device::off_by(0.0);
    let referee = || Referee { device: Some(&device), ..Referee::host(&host) };
    for (graph, probe) in [(&large, None), (&probe, Some(&probe))] {
        let chosen = referee().choosing(graph, probe);
        assert!(
            chosen.device.is_none(),
            "without a probe, or for little, the host judges: {chosen}"
        );
    }
}

#[test]
fn some_samples_of_a_batch_stand_for_all_of_them() {
    let host = CpuBackend::new(Some(2)).unwrap();
    let template = Template::built_in(overdrive_models::find("text-transformer").unwrap()).unwrap();
    let sizes = |batch| [("batch".to_owned(), batch)].into();
    assert!(template.bind(&sizes(4)).unwrap().sampled.is_none(), "a small batch is compared whole");
    let workload = template.bind(&sizes(2048)).unwrap();
    let oracle = workload.judged_by(Referee::host(&host));
    let rows = oracle.rows().expect("a large batch is compared on samples").to_vec();
    assert!(rows.len() < 2048 && rows[..2] == [0, 2047], "{rows:?}");
    let (expected, inputs) = (oracle.expected(7).unwrap(), oracle.inputs(7));
    let alone = template.bind(&sizes(1)).unwrap().graph;
    let judge = Referee::host(&host).choosing(&alone, None);
    let alone = Reference::new(&alone, ReferenceRunner::On(judge));
    let per_row = expected[0].len() / rows.len();
    for place in [0, 1, rows.len() - 1] {
        let one: Vec<Tensor> =
            inputs.iter().map(|tensor| tensor.rows(&rows[place..][..1])).collect();
        let found = alone.outputs(&one).unwrap()[0].to_f64();
        let expected = &expected[0][place * per_row..][..per_row];
        assert!(
            found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-9),
            "row {}",
            rows[place]
        );
    }
}

//! Outputs of calls, in buffers that held NaN.

use overdrive_ir::{Array, Backend, Buffer, Graph, Mode, Port, State, Tensor, TensorType, Tuning};

/// An output of NaN, so that a missing write is seen.
pub(crate) fn poisoned(backend: &dyn Backend, ty: &TensorType) -> Buffer {
    let poison = Tensor::from_f64(ty.dtype, ty.shape.clone(), &vec![f64::NAN; ty.elements()]);
    let mut buffer = backend.output(ty).unwrap();
    backend.write(&mut buffer, &poison).unwrap();
    buffer
}

/// Outputs of one call of a graph.
pub(crate) fn outputs_of(backend: &dyn Backend, graph: &Graph, inputs: &[Array]) -> Vec<Tensor> {
    let compiled = backend.compile(graph, Mode::Compile, &Tuning::default()).unwrap();
    let mut session = compiled.session().unwrap();
    let mut state = State::initial(graph, backend).unwrap();
    let inputs: Vec<Buffer> =
        inputs.iter().map(|x| backend.upload(&x.to_tensor()).unwrap()).collect();
    let of_port = |port: &Port| poisoned(backend, graph.ty(port.value));
    let mut outputs: Vec<Buffer> = graph.outputs().iter().map(of_port).collect();
    session.run(state.with(&inputs, &mut outputs)).unwrap().wait().unwrap();
    outputs.iter().map(|output| backend.download(output).unwrap()).collect()
}

//! Links between GPUs that plans can be timed over where there are none, and where each figure
//! comes from.

use overdrive_ir::{Fabric, Link};
use std::collections::BTreeMap;

/// A step of a ring inside a host, and between hosts, in seconds. NCCL's own figures for its
/// protocol of large messages (`hwLat` in `src/graph/tuning.cc`).
const STEP_SECONDS: [f64; 2] = [3.4e-6, 9.6e-6];

/// All fabrics by name.
pub fn all() -> [Fabric; 2] {
    [nvlink_h200(), infiniband_400()]
}

/// GPUs of one host behind NVLink switches. By its data sheet an H100 has the same links.
///
/// All-reduce on two H200s, by NCCL: 1 GiB at 327 GB/s of bus bandwidth, 256 MiB at 297, 16 MiB at
/// 208. For two ranks the bus bandwidth is bytes over seconds: 3.284 ms,
/// 0.904 ms, 0.0807 ms. The line `a + bytes / b` with the least squares of relative errors has
/// a = 28.3 us and b = 319 GB/s, and is within 4 % of each. Two steps of a ring are 6.8 us of `a`;
/// the rest is the call. Send and receive of 64 MiB reached 259 GB/s. Eight H200s reached 360 GB/s
/// in all-reduces, and 77 GB/s in a ring of send and receive.
fn nvlink_h200() -> Fabric {
    let link = |ring_bytes_per_second, send_bytes_per_second| Link {
        latency_seconds: STEP_SECONDS[0],
        ring_bytes_per_second,
        send_bytes_per_second,
    };
    Fabric {
        name: "nvlink-h200".to_owned(),
        source: "inside a host measured on 2 and 8 H200s; between hosts nominal: InfiniBand of \
                 400 Gb/s a GPU"
            .to_owned(),
        ranks_a_host: 8,
        call_seconds: 28.3e-6 - 2.0 * STEP_SECONDS[0],
        within: BTreeMap::from([(2, link(319e9, 259e9)), (8, link(360e9, 77e9))]),
        between: Some(nominal_400()),
        work_beside: WORK_BESIDE,
    }
}

/// Hosts of one GPU each, with one port of InfiniBand NDR. Nominal: nothing was measured.
fn infiniband_400() -> Fabric {
    Fabric {
        name: "infiniband-400".to_owned(),
        source: "nominal: hosts of one GPU with InfiniBand of 400 Gb/s".to_owned(),
        ranks_a_host: 1,
        within: BTreeMap::new(),
        ..nvlink_h200()
    }
}

/// 400 Gb/s each way.
fn nominal_400() -> Link {
    Link {
        latency_seconds: STEP_SECONDS[1],
        ring_bytes_per_second: 50e9,
        send_bytes_per_second: 50e9,
    }
}

/// Speed of work while NCCL holds multiprocessors, as a share. Chosen so that the step of gpt-1.3b
/// on two H100s is the measured one (`results/h100/scaling.json`: 91.2 % efficiency). So it stands
/// for all that a second rank costs.
const WORK_BESIDE: f64 = 0.38;

#[cfg(test)]
mod tests {
    use super::*;
    use overdrive_ir::{Cluster, Mesh};

    #[test]
    fn every_fabric_joins_thousands_of_ranks_and_is_read_back_from_its_file() {
        let mesh = Mesh::new([("data", 4096)]);
        for fabric in all() {
            assert!(Cluster::new(&fabric, &mesh).is_ok(), "{}", fabric.name);
            let text = serde_json::to_string_pretty(&fabric).unwrap();
            assert_eq!(Fabric::of_json(&text), Ok(fabric));
        }
    }
}

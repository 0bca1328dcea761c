//! Programs of release 0.1 (wire version 4) with this release: sessions work, links between ranks are refused by name.
use std::{
    io::{Read, Write},
    net::TcpStream,
};

use common::{
    ids::{Epoch, MemberIndex, RequestId, TopologyHash},
    version::speaking,
};
use harness::programs::{Cluster, PATIENCE};
use protocol::{
    handshake::{Between, Hello, Identity, PREAMBLE_BYTES, Preamble, Purpose, Welcome},
    message::{Request, RequestBody, Response, ResponseBody, decode, encode},
    recovery::{RecoveryAnswer, RecoveryAsk},
};
use serde::{Serialize, de::DeserializeOwned};

/// A connection of a program of release 0.1.
struct Old(TcpStream);

impl Old {
    fn dial(address: &str, purpose: Purpose) -> (Self, Welcome) {
        let mut stream = TcpStream::connect(address).expect("the daemon listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("an option");
        let own = Preamble { highest: 4, ..Preamble::OWN };
        stream.write_all(&own.encode()).expect("the daemon reads");
        let mut theirs = [0; PREAMBLE_BYTES];
        stream.read_exact(&mut theirs).expect("the daemon answers");
        assert!(Preamble::decode(theirs).is_some_and(|theirs| theirs.lowest <= 4));
        let (name, build, machine) = ("old".into(), "0.1.0".into(), "m".into());
        let identity = Identity { name, build, numeric: protocol::NUMERIC_VERSION, machine, cores: Vec::new() };
        let mut old = Self(stream);
        old.send(&Hello { identity, purpose });
        let welcome = old.receive();
        (old, welcome)
    }

    fn send<T: Serialize>(&mut self, message: &T) {
        let body = speaking(4, || encode(message));
        let bytes = [&(body.len() as u32).to_le_bytes(), body.as_slice()].concat();
        self.0.write_all(&bytes).expect("the daemon reads");
    }

    fn receive<T: DeserializeOwned>(&mut self) -> T {
        let mut length = [0; 4];
        self.0.read_exact(&mut length).expect("the daemon answers");
        let mut body = vec![0; u32::from_le_bytes(length) as usize];
        self.0.read_exact(&mut body).expect("a whole message");
        speaking(4, || decode(&body)).expect("a message of version 4")
    }
}

#[test]
fn console_of_release_0_1_gets_its_session() {
    let cluster = Cluster::of(1);
    let (mut old, welcome) = Old::dial(&cluster.addresses[0], Purpose::Console);
    assert!(matches!(welcome, Welcome::Accepted(identity) if identity.name == "pi1"));
    let mut ask = |id: u64, body: RequestBody| {
        old.send(&Request { id: RequestId(id), body });
        let response: Response = old.receive();
        assert_eq!(response.id, RequestId(id));
        response.body
    };
    assert!(matches!(ask(1, RequestBody::Report), ResponseBody::Report(report) if report.name == "pi1"));
    let standing = ask(2, RequestBody::Recovery(Box::new(RecoveryAsk::Standing(None))));
    assert!(matches!(standing, ResponseBody::Recovery(RecoveryAnswer::Standing(_))), "{standing:?}");
    let failed = ask(3, RequestBody::CancelRunning { number: 9 });
    assert!(matches!(failed, ResponseBody::Failed(_)), "{failed:?}");
}

#[test]
fn rank_of_release_0_1_is_refused_with_both_versions() {
    let cluster = Cluster::of(1);
    let (epoch, hash) = (Epoch(1), TopologyHash(1));
    let between = Between { epoch, hash, from: MemberIndex(0), to: MemberIndex(1) };
    for purpose in [Purpose::Data(between), Purpose::Control(between)] {
        let (_, welcome) = Old::dial(&cluster.addresses[0], purpose);
        let Welcome::Refused(fault) = welcome else { panic!("{welcome:?}") };
        let text = fault.to_string();
        for part in ["pi1", "old", "wire version", "0.1.0", "install the same release"] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
    }
}

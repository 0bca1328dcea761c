//! KV links to a rank that takes nothing.
use std::{
    net::{TcpListener, TcpStream},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use common::ids::MemberIndex;
use protocol::seal::Seals;

use super::WHO;
use crate::collective::{Abort, KvLinks, Socket};

#[test]
fn sender_waits_visibly_for_a_receiver_and_gives_up_one_that_accepts_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback can be bound");
    let stream = TcpStream::connect(listener.local_addr().expect("it is bound")).expect("loopback accepts");
    let (_receiver, _) = listener.accept().expect("a peer dialled");
    let abort = Arc::new(Abort::new().expect("there are descriptors"));
    let sockets = vec![(MemberIndex(5), Socket { stream, seals: Seals::default() })];
    let links = KvLinks::new(MemberIndex(0), WHO.0, WHO.1, sockets, false, Arc::clone(&abort));
    let mut links = links.expect("the socket is good");
    let watched = Arc::clone(&abort);
    let watching = thread::spawn(move || {
        let until = Instant::now() + Duration::from_secs(20);
        while !watched.is_waiting() && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
        watched.is_waiting()
    });
    for number in 0..2000 {
        let _bytes = links.send(MemberIndex(5), 7, number, |out| out.resize(out.len() + 65_536, 0));
    }
    assert!(watching.join().expect("it does not panic"), "a wait for another rank is no stall");
    assert!(!links.has(MemberIndex(5)) && !abort.is_waiting());
}

//! A bare exchange of bytes on sockets, as the baseline of an all-reduce of the same size. Nothing is summed or
//! checked.
use std::{io, net::TcpStream, os::fd::AsRawFd};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::socket::{MsgFlags, recv, send},
};

/// Longest sleep before all sockets are polled again, in milliseconds.
const POLL_MS: u16 = 200;

/// Sockets to other ranks, and send and receive buffers.
#[derive(Debug)]
pub(super) struct Bare {
    streams: Vec<Option<TcpStream>>,
    out: Vec<u8>,
    input: Vec<u8>,
    /// Bytes that are still to be sent and received on each socket.
    left: Vec<(usize, usize)>,
}

impl Bare {
    pub(super) fn new(streams: Vec<Option<TcpStream>>) -> Self {
        Self { streams, out: Vec::new(), input: Vec::new(), left: Vec::new() }
    }

    /// Sends and receives the given number of bytes on each socket, concurrently.
    ///
    /// # Errors
    /// A socket closed or failed.
    pub(super) fn exchange(&mut self, between: &[(usize, usize)]) -> io::Result<()> {
        let most = between.iter().map(|(out, into)| *out.max(into)).max().unwrap_or(0);
        if self.out.len() < most {
            self.out.resize(most, 0);
            self.input.resize(most, 0);
        }
        self.left.clear();
        self.left
            .extend(between.iter().zip(&self.streams).map(|(left, stream)| stream.as_ref().map_or((0, 0), |_| *left)));
        while self.left.iter().any(|left| *left != (0, 0)) {
            let all_sent = self.send()?;
            self.receive(all_sent)?;
        }
        Ok(())
    }

    /// Sends as much as the sockets accept. Returns whether everything was sent.
    fn send(&mut self) -> io::Result<bool> {
        for (stream, (left, _)) in self.streams.iter().zip(&mut self.left) {
            let Some(stream) = stream.as_ref().filter(|_| *left > 0) else { continue };
            match send(stream.as_raw_fd(), &self.out[..*left], MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL) {
                Ok(count) => *left -= count,
                Err(Errno::EAGAIN | Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(self.left.iter().all(|(out, _)| *out == 0))
    }

    /// Receives available bytes. Once everything is sent, sleeps on the first socket that still expects data.
    fn receive(&mut self, all_sent: bool) -> io::Result<()> {
        let mut has_moved = false;
        for (stream, (_, left)) in self.streams.iter().zip(&mut self.left) {
            let Some(stream) = stream.as_ref().filter(|_| *left > 0) else { continue };
            let flags = if all_sent { MsgFlags::empty() } else { MsgFlags::MSG_DONTWAIT };
            match recv(stream.as_raw_fd(), &mut self.input[..*left], flags) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => (*left, has_moved) = (*left - count, true),
                Err(Errno::EAGAIN | Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        if !all_sent && !has_moved {
            self.sleep()?;
        }
        Ok(())
    }

    /// Sleeps until a socket is ready.
    fn sleep(&self) -> io::Result<()> {
        use std::os::fd::AsFd;
        let mut list = Vec::new();
        for (stream, (out, into)) in self.streams.iter().zip(&self.left) {
            let Some(stream) = stream else { continue };
            let mut events = PollFlags::empty();
            events.set(PollFlags::POLLOUT, *out > 0);
            events.set(PollFlags::POLLIN, *into > 0);
            if !events.is_empty() {
                list.push(PollFd::new(stream.as_fd(), events));
            }
        }
        match poll(&mut list, PollTimeout::from(POLL_MS)) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

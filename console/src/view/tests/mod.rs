//! Screens of whole stories, compared with stored texts.
mod chat;
mod document;
mod generate;
mod matrix;
mod models;
mod mouse;
mod operate;
mod page;
mod snapshot;
mod sync;
mod tour;

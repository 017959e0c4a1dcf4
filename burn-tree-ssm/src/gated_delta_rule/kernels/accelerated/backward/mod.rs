mod gradients;
mod local;
mod reverse_scan;
mod scan;

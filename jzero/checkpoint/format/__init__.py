"""What a checkpoint is on disk: its header, its arrays, their checksums, and safetensors files."""

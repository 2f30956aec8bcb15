"""Methods that choose codes and scales; pure functions of weights and statistics of inputs."""

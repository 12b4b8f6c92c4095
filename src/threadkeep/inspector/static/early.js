// Runs before anything is drawn, so that nothing moves when the other scripts have come.
document.documentElement.classList.add("js");
